"""Environments: the base class, the registry that finds them by name, the snapshot that pins their source, the
processes that host them, and one file per built-in.

Import `Environment` and `tool` from `environment`, `resolve` and `names` from `registry`, `snapshot` and `load` from
`snapshot`. Nothing here asks a model or writes a journal, and no built-in's heavy dependency is imported before use.
"""
