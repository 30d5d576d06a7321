"""The command line, thin: parse, call, print. One file a command, imported only when it is asked for.

`main` is the entry point, `commands` the table of names, `options` every option declared once, `display` and `tables`
what is shown. May import anything; nothing may import from here.
"""
