"""A workplace of our own: people, a calendar, mail, tickets and customers, and tasks that leave it in one right state.

`world` makes an office from a seed. The tools are one file a desk: `people calendar mail tickets customers`. `jobs` are
the kinds of tasks, `tasks` draws them, `scoring` says what has changed and whether that is what was asked for.
"""
