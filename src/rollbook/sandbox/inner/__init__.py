"""Modules that run inside: the zygote and the guests it forks. They import only the standard library."""
