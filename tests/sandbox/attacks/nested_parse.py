# status: error crash memory timeout
compile("(" * 1_000_000 + ")" * 1_000_000, "x", "eval")
