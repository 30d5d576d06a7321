"""Units: which words after a number leave its value as it is, and which unit an answer is measured in."""

from __future__ import annotations

import re

MULTIPLIERS = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Words that multiply the number before them."""

_MOST_WORDS = 4
_SHORT = frozenset(
    re.findall(
        r"\S+",
        "m g s h L l C F cm mm km kg mg ml mL dl dL cl ft in yd lb oz hr mi am pm AM PM sq cu Hz kW pt qt lbs hrs "
        "yds mph kph min sec deg rad cms kms pts",
    )
)
"""Units of one or two letters, and units without a space before them: other letters may be mathematics."""
_AFTER_A_UNIT = frozenset(["a", "an", "of", "in", "on", "at", "by", "to", "us"])
_NO_UNIT = frozenset(
    re.findall(
        r"\S+",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety dozen hundred thousand "
        "million billion trillion half halves third thirds quarter fifth fifths tenth tenths squared cubed power "
        "raised double twice triple times or nor not and but plus minus than mod modulo versus vs is are was isn "
        "aren wrong right correct incorrect false true maybe perhaps possibly probably otherwise except without "
        "unless if else instead rather over under above below divided multiplied choose factorial root sqrt pi log "
        "ln lg exp sin cos tan cot csc sinh cosh tanh arcsin arccos arctan max gcd lcm det alpha beta gamma theta "
        "phi lambda infinity no yes never either neither through until between",
    )
)
_WORDS = re.compile(r"(\s*)([^\W\d_]+(?:[\s\-/.'’]+[^\W\d_]+)*)\.?\s*(?:\^?\s*\{?\s*[23²³]\s*\}?)?!?")
_KNOWN = {
    name: kind
    for kind, names in {
        "mm": "mm millimeter millimetre",
        "cm": "cm cms centimeter centimetre",
        "m": "m meter metre",
        "km": "km kms kilometer kilometre",
        "inch": "in inch inches",
        "foot": "ft foot feet",
        "yard": "yd yard",
        "mile": "mi mile",
        "mg": "mg milligram",
        "g": "g gram",
        "kg": "kg kilogram",
        "pound": "lb pound",
        "ounce": "oz ounce",
        "second": "s sec second",
        "minute": "min minute",
        "hour": "h hr hour",
        "day": "day",
        "week": "week",
        "month": "month",
        "year": "year",
        "ml": "ml milliliter millilitre",
        "l": "l liter litre",
        "dollar": "dollar usd",
        "cent": "cent",
        "euro": "euro eur",
        "am": "am a.m",
        "pm": "pm p.m",
        "degree": "deg degree",
        "radian": "rad radian",
    }.items()
    for name in names.split()
}


def is_unit(text: str) -> bool:
    """Whether the text after a number can only be its unit; False when in doubt.

    >>> [is_unit(text) for text in (" apples per day", "km", " m^2", "x", " i", " less than x", " is wrong")]
    [True, True, True, False, False, False, False]
    """
    match = _WORDS.fullmatch(text)
    if not match:
        return False
    words = re.findall(r"[^\W\d_]+", match[2].replace(".", ""))
    if len(words) > _MOST_WORDS or any(word.casefold() in _NO_UNIT for word in words):
        return False
    longest_short = 2 if match[1] else 3
    first_fits = len(words[0]) > longest_short or words[0] in _SHORT
    return first_fits and all(len(w) > 2 or w in _SHORT or w in _AFTER_A_UNIT for w in words[1:])


def find_unit(text: str) -> str | None:
    r"""Return the unit of a number, if it is a well-known one.

    >>> find_unit("5 kilometres"), find_unit(r"\$5"), find_unit("5 apples"), find_unit("5")
    ('km', 'dollar', None, None)
    """
    for sign, kind in (("$", "dollar"), ("€", "euro"), ("£", "sterling"), ("\\circ", "degree"), ("°", "degree")):
        if sign in text:
            return kind
    for word in re.findall(r"[^\W\d_]+(?:\.m)?", text.casefold()):
        known = _KNOWN.get(word) or _KNOWN.get(word.removesuffix("s"))
        if known:
            return known
    return None
