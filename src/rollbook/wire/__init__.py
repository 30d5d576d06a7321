"""What others reach over HTTP. May import everything below the command line; servers are aiohttp's own.

aiohttp is there already for the client: a second HTTP stack would be one more thing to install and to trust.
"""
