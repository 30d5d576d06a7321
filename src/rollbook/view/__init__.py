"""What is looked at in a browser: the viewer, its one-file export, and the one-file report.

    folder.py      which runs there are, and that nothing outside is opened
    following.py   journals that grow, read once
    located.py     where every counted rollout lies
    snapshot.py    a run at one moment; opened.py takes the next one when something was written
    numbers.py tasks.py rollout.py paired.py runs.py search.py    what each page is told
    guard.py api.py server.py    who may ask, what, and where
    web/           the page itself: plain modules, no build; web/vendor has its libraries with their licences

Everything that a model or an environment said is untrusted: it is shown as text. Only the command line imports from
here.
"""
