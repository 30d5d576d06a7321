"""Tools of MCP servers: `McpServer` names one; `Servers` are those of an environment, reached by the official package.

Only `server` may be imported without that package (`pip install 'rollbook[mcp]'`).
"""
