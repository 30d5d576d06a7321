import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import decode, encode
from rollbook.environments.builtin.reasoning_gym import pack, unpack

scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
values = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9) | st.tuples(st.integers(0, 9)), inner, max_size=3)
        | st.sets(hashables, max_size=3)
    ),
    max_leaves=12,
)


@given(values)
def test_what_goes_through_json_comes_back_equal_and_of_the_same_types(value):
    back = unpack(decode(encode(pack(value))))
    assert back == value
    assert type(back) is type(value)


def test_plain_json_is_left_as_it_is():
    plain = {"a": [1, 2.5, None, True, "x", {"b": []}]}
    assert pack(plain) == plain


def test_a_dictionary_that_uses_the_tag_itself_comes_back():
    odd = {"$python": "tuple", "of": [1]}
    assert unpack(decode(encode(pack(odd)))) == odd


def test_numbers_of_numpy_and_infinities_become_plain():
    packed = pack([np.float64(0.5), np.int64(3), np.str_("a"), math.inf])
    assert unpack(decode(encode(packed))) == [0.5, 3, "a", math.inf]


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(TypeError, match="object cannot be kept"):
        pack({"a": object()})


def test_a_fraction_comes_back_as_a_fraction():
    back = unpack(decode(encode(pack({"share": Fraction(2, 3)}))))
    assert back == {"share": Fraction(2, 3)}
    assert type(back["share"]) is Fraction
