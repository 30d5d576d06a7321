"""The run directory: everything a run is, in plain files.

`Book` opens one, `Draft` makes one, `Journal` writes marks durably, `Claims` hands out chunks, `Ledger` reads back what
dead workers left, `marks` streams what counts. May import core, processes and tokens; knows no model, no environment.
"""
