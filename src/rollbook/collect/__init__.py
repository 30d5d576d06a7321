"""The engine: `run` (plan, work, report), the worker that fills a book, and the Collector that trainers hold open.

One engine for all of it: a `Worker` takes jobs from a `Desk` and gives marks back. May import everything below; the
command line and the clusters are built on it.
"""
