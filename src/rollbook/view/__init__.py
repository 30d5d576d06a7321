"""What is looked at in a browser: the one-file report, drawn here, and whatever else has a page.

Pages need no network and run no script; everything that a model or an environment said is escaped. Only the command
line imports from here.
"""
