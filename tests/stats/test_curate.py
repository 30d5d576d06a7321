import json

import pytest

from rollbook.core import decode, encode
from rollbook.errors import UsageError
from rollbook.stats.row_selection import Buckets, CurateOptions, Expression, curate

MEANS = [0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 1.0, None]


def make_lines():
    return [json.dumps({"id": f"t{i}", "mean": mean, "n": i}).encode() + b"\n" for i, mean in enumerate(MEANS)]


def read_ids(choice):
    return [json.loads(line)["id"] for line in choice.lines]


def test_only_what_is_true_is_kept_and_the_rows_stay_as_they_are():
    choice = curate(make_lines(), CurateOptions(keep=Expression("0 < mean < 1")))
    assert read_ids(choice) == ["t1", "t2", "t3", "t4", "t5"]
    assert choice.lines[0] + b"\n" == make_lines()[1]
    assert (choice.rows, choice.matched) == (8, 5)


def test_sorting_puts_the_unknown_last_either_way():
    assert read_ids(curate(make_lines(), CurateOptions(sort=Expression("mean"))))[-2:] == ["t6", "t7"]
    assert read_ids(curate(make_lines(), CurateOptions(sort=Expression("mean"), descending=True)))[:2] == ["t6", "t5"]
    assert read_ids(curate(make_lines(), CurateOptions(sort=Expression("mean"), descending=True, limit=1))) == ["t6"]


def test_buckets_have_their_lower_edge_and_the_last_one_both():
    choice = curate(make_lines(), CurateOptions(buckets=Buckets.parse("mean:0,0.25,0.5,1")))
    assert choice.buckets == {"[0, 0.25)": (2, 2), "[0.25, 0.5)": (2, 2), "[0.5, 1]": (3, 3)}
    assert choice.outside == 1
    assert json.loads(choice.lines[2])["bucket"] == "[0.25, 0.5)"
    assert read_ids(choice) == ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]


def test_as_many_as_asked_are_drawn_from_each_bucket_and_the_seed_decides():
    rows = [json.dumps({"id": f"t{i}", "mean": i / 100}).encode() for i in range(100)]
    wish = {"buckets": Buckets.parse("mean:0,0.5,1"), "per_bucket": 5}
    one, same, other = (curate(rows, CurateOptions(**wish, seed=seed)) for seed in (1, 1, 2))
    assert read_ids(one) == read_ids(same) != read_ids(other)
    assert one.buckets == {"[0, 0.5)": (50, 5), "[0.5, 1]": (50, 5)}
    assert read_ids(one) == sorted(read_ids(one), key=lambda name: int(name[1:]))


def test_what_is_said_to_be_taken_of_a_bucket_is_what_comes_out():
    wish = CurateOptions(buckets=Buckets.parse("mean:0,0.25,0.5,1"), sort=Expression("mean"), descending=True, limit=4)
    choice = curate(make_lines(), wish)
    assert choice.buckets == {"[0, 0.25)": (2, 0), "[0.25, 0.5)": (2, 1), "[0.5, 1]": (3, 3)}
    assert sum(taken for _, taken in choice.buckets.values()) == len(choice.lines) == 4


@pytest.mark.parametrize("text", ["mean", "mean:", "mean:0", "mean:1,0", "mean:a,b", ":0,1", "mean:0,inf", "mean:0,0"])
def test_a_bucket_that_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError):
        Buckets.parse(text)


def test_drawing_without_buckets_is_refused():
    with pytest.raises(UsageError, match="--bucket"):
        CurateOptions(per_bucket=3)


def test_an_unknown_name_is_refused_wherever_it_stands():
    for wish in (
        CurateOptions(keep=Expression("x > 0")),
        CurateOptions(sort=Expression("x")),
        CurateOptions(buckets=Buckets.parse("x:0,1")),
    ):
        with pytest.raises(UsageError, match="unknown name x"):
            curate(make_lines(), wish)


def test_a_name_that_only_some_rows_have_is_known():
    rows = [b'{"id": "a", "level": 3}', b'{"id": "b"}']
    assert read_ids(curate(rows, CurateOptions(keep=Expression("level == 3")))) == ["a"]


def test_values_that_cannot_be_sorted_are_refused():
    with pytest.raises(UsageError, match="--sort x"):
        curate([b'{"x": 1}', b'{"x": "a"}'], CurateOptions(sort=Expression("x")))


def test_nothing_to_choose_from_gives_nothing():
    assert curate([], CurateOptions(keep=Expression("mean > 0"))).lines == []


def test_a_bucket_of_the_users_own_is_not_overwritten_but_that_of_an_earlier_choice_is():
    wish = CurateOptions(buckets=Buckets.parse("mean:0,0.5,1"))
    earlier = curate([encode({"id": "a", "mean": 0.2, "bucket": "[0.25, 1e+06]"})], wish)
    assert [decode(line)["bucket"] for line in earlier.lines] == ["[0, 0.5)"]
    with pytest.raises(UsageError, match="row 'a' already has a field 'bucket'"):
        curate([encode({"id": "a", "mean": 0.2, "bucket": "mine"})], wish)


def test_a_product_too_large_for_a_float_is_unknown():
    wish = CurateOptions(keep=Expression("*".join(["9" * 300] * 3) + " > n"))
    assert curate([encode({"id": "a", "n": 1})], wish).matched == 0


def test_buckets_that_lie_close_together_have_names_of_their_own():
    labels = Buckets.parse("mean:0.1234567,0.1234568,0.1234569").labels
    assert labels == ["[0.1234567, 0.1234568)", "[0.1234568, 0.1234569]"]
    again = curate(
        [encode({"id": "a", "mean": 0.12345675, "bucket": labels[0]})], CurateOptions(buckets=Buckets.parse("mean:0,1"))
    )
    assert [decode(line)["bucket"] for line in again.lines] == ["[0, 1]"]


def test_options_are_read_from_text():
    assert CurateOptions.parse() == CurateOptions()
    found = CurateOptions.parse("mean > 0.2", "mean", "mean:0,0.5,1", descending=True, per_bucket=2, limit=3, seed=4)
    assert (found.keep.text, found.sort.text, found.buckets.value.text) == ("mean > 0.2", "mean", "mean")
    assert (found.descending, found.per_bucket, found.limit, found.seed) == (True, 2, 3, 4)
    assert read_ids(curate(make_lines(), CurateOptions.parse(sort="mean", descending=True, limit=1))) == ["t6"]


def test_a_bucket_is_for_numbers_and_what_is_none_is_shown_cut():
    row = encode({"id": "a", "majority": "x" * 50, "mean": None})
    with pytest.raises(UsageError, match=r"--bucket majority: 'x{40}' is not a number"):
        curate([row], CurateOptions(buckets=Buckets.parse("majority:0,1")))
    assert curate([row], CurateOptions(buckets=Buckets.parse("mean:0,1"))).outside == 1


@pytest.mark.parametrize(("value", "label"), [(-0.1, None), (0, "[0, 1)"), (1, "[1, 2]"), (2, "[1, 2]"), (2.1, None)])
def test_what_is_beyond_the_edges_is_in_no_bucket(value, label):
    choice = curate([encode({"v": value})], CurateOptions(buckets=Buckets.parse("v:0,1,2")))
    assert choice.buckets == {name: (int(name == label),) * 2 for name in ("[0, 1)", "[1, 2]")}
    assert (choice.outside, len(choice.lines)) == (int(label is None), int(label is not None))


def test_who_names_no_seed_gets_the_draws_of_seed_0():
    rows = [encode({"id": f"t{i}", "mean": i / 100}) for i in range(100)]
    wish = {"buckets": Buckets.parse("mean:0,1"), "per_bucket": 5}
    found = [read_ids(curate(rows, CurateOptions(**wish, **more))) for more in ({}, {"seed": 0}, {"seed": 1})]
    assert found[0] == found[1] != found[2]
    assert CurateOptions.parse(bucket="mean:0,1", per_bucket=5).seed == 0


def test_only_as_many_rows_as_the_limit_come_out():
    for limit, count in ((None, 8), (0, 0), (3, 3), (99, 8)):
        choice = curate(make_lines(), CurateOptions(limit=limit))
        assert (len(choice.lines), choice.matched, choice.buckets, choice.outside) == (count, 8, {}, 0)
