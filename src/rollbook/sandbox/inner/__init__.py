"""What runs inside: the zygote and the child it forks. The standard library alone, and nothing of Rollbook."""
