import pytest

from rollbook.environments.builtin.json_schema import check_schema, make_validator
from rollbook.errors import UsageError

pytest.importorskip("jsonschema")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "thing"}, "not a JSON schema: 'thing' is not valid"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "the schema refers to 'http://127.0.0.1:9/x.json', which is not in it"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "the schema refers to '.*/\\$defs/b', which is not in it"),
        ({"$ref": "#"}, "the schema refers to itself without end"),
        ({"anyOf": [{"type": "string"}, {"not": {"$ref": "#"}}]}, "the schema refers to itself without end"),
        (
            {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "the schema refers to itself without end",
        ),
        ({"properties": {"a": {"$dynamicRef": "#nope"}}}, "the schema refers to '.*nope', which is not in it"),
        ({"$dynamicAnchor": "a", "$dynamicRef": "#a"}, "the schema refers to itself without end"),
        ({"items": {"pattern": "("}}, "not a JSON schema: '\\(' is not a 'regex'"),
    ],
)
def test_a_schema_that_would_fail_with_every_value_is_refused(schema, words):
    with pytest.raises(UsageError, match=f"^rows.jsonl:3: {words}") as caught:
        check_schema(schema, "rows.jsonl:3")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "fits", "misfits"),
    [
        ({"type": "array", "items": {"$ref": "#"}}, [[], [[]]], [1]),
        ({"$defs": {"n": {"type": "integer"}}, "allOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]}, 1, "1"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "string"}, {"type": "thing"}),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {"s": {"const": 1}},
                "$ref": "#/definitions/s",
            },
            1,
            2,
        ),
        ({"$id": "https://a.example/b", "$defs": {"c": {"$anchor": "d", "const": 1}}, "$ref": "#d"}, 1, 2),
        ({"multipleOf": 0.01}, 19.99, 19.995),
        ({"multipleOf": 0.1}, 1e300, 0.05),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "multipleOf": 0.01}, 0.07, 0.075),
        ({"patternProperties": {"^a": {"pattern": "^b"}}}, {"a": "b"}, {"a": "c"}),
    ],
)
def test_references_within_a_schema_and_to_the_standards_are_followed(schema, fits, misfits):
    check_schema(schema, "rows.jsonl:3")
    assert [make_validator(schema).is_valid(value) for value in (fits, misfits)] == [True, False]
