"""`python -m rollbook` is `rollbook`."""

from rollbook.cli.main import main
from rollbook.processes.process_tree import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    main()
