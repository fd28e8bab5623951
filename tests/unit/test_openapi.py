"""OpenAPI descriptions become tools; what cannot become one is reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.catalog.importers import openapi
from runlane.catalog.importers.openapi import ImportedTools, import_openapi
from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.definitions.schema.definition import Tool
from runlane.errors import InvalidRequest
from runlane.templates.json_schema import misfit

QUERY = {"name": "s", "in": "query", "required": True}
TEXT = {"type": "string"}
PET: dict[str, Any] = {
    "type": "object",
    "required": ["id", "name"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "name": {"type": "string", "example": "Rex"},
        "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        "nick": {"type": "string", "nullable": True, "enum": ["a", "b"]},
        "mother": {"$ref": "#/components/schemas/Pet"},
    },
}


def spec(paths: dict[str, Any], version: str = "3.0.3", **more: Any) -> dict[str, Any]:
    return {
        "openapi": version,
        "info": {"title": "Pets", "version": "1"},
        "servers": [{"url": "https://{host}/v1/", "variables": {"host": {"default": "pets.example"}}}],
        "paths": paths,
        "components": {
            "schemas": {"Pet": PET},
            "parameters": {"Limit": {"name": "limit", "in": "query", "schema": {"type": "integer"}}},
            "requestBodies": {"Pet": json_body({"$ref": "#/components/schemas/Pet"})["requestBody"]},
        },
        **more,
    }


def tools(found: ImportedTools) -> dict[str, Tool]:
    """As the rest of the program sees them, without a flaw."""
    loaded = check_loaded(parse_bodies({"tools": found.tools}), ())
    assert [str(problem) for problem in loaded.problems] == []
    return {parsed.definition.id: parsed.definition for parsed in loaded.definitions}  # type: ignore[misc]


def one(operation: dict[str, Any], method: str = "get", path: str = "/x", **options: Any) -> Tool:
    found = import_openapi(spec({path: {method: {"operationId": "op", **operation}}}), **options)
    assert found.left_out == []
    return tools(found)["op"]


def left_out(operation: dict[str, Any], method: str = "get", path: str = "/x", **options: Any) -> str:
    found = import_openapi(spec({path: {method: operation}}), **options)
    assert found.tools == []
    (item,) = found.left_out
    assert item.operation == f"{method.upper()} {path}"
    return item.why


def json_body(schema: Any, **more: Any) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, **more}}


def test_reading_operations() -> None:
    found = import_openapi(
        spec(
            {
                "/pets/{pet-id}": {
                    "parameters": [{"name": "pet-id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                    "get": {
                        "operationId": "pets.get",
                        "summary": "One pet",
                        "description": "By its id.",
                        "parameters": [
                            {"$ref": "#/components/parameters/Limit"},
                            {"name": "filter[name]", "in": "query", "description": "of it", "schema": TEXT},
                            {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                            {"name": "Accept", "in": "header", "schema": {"type": "string"}},
                            {"name": "tags", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                        ],
                    },
                }
            }
        ),
        name_prefix="shop_",
        headers={"Authorization": "Bearer {secret.TOKEN}"},
    )  # fmt: skip
    (tool,) = tools(found).values()
    assert tool.name == "shop_pets_get"
    assert (tool.label, tool.description) == ("One pet", "One pet\n\nBy its id.")
    assert tool.url == "https://pets.example/v1/pets/{pet_id}?filter[name]={filter_name}"
    assert tool.headers == {"X-Trace": "{X_Trace}", "Authorization": "Bearer {secret.TOKEN}"}
    assert (tool.method, tool.effect, tool.body) == ("GET", "repeatable", "all")
    assert tool.input_schema == {
        "type": "object",
        "properties": {
            "pet_id": {"type": "integer"},
            "limit": {"type": "integer"},
            "filter_name": {"type": "string", "description": "of it"},
            "X_Trace": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["pet_id"],
        "additionalProperties": False,
    }
    assert (found.left_out, found.notes) == ([], [])


@pytest.mark.parametrize("method", ["post", "put", "patch"])
def test_writing_operations(method: str) -> None:
    operation = {
        "parameters": [{"name": "dry", "in": "query", "schema": {"type": "boolean"}}],
        "requestBody": {"$ref": "#/components/requestBodies/Pet"},
    }
    found = import_openapi(spec({"/pets": {method: {"operationId": "op", **operation}}}))
    tool = tools(found)["op"]
    assert (tool.effect, tool.body, tool.method) == ("once", "rest", method.upper())
    assert tool.url == "https://pets.example/v1/pets?dry={dry}"
    fields = tool.input_schema["properties"]
    assert fields["dry"] == {"type": "boolean"}
    assert "id" not in fields, "only an answer has it"
    assert fields["name"] == {"type": "string"}
    assert fields["age"] == {"type": "integer", "exclusiveMinimum": 0}
    assert fields["nick"] == {"type": ["string", "null"], "enum": ["a", "b", None]}
    assert fields["mother"] == {}, "it contains itself"
    assert tool.input_schema["required"] == ["name"]
    assert [note.why for note in found.notes] == ["A schema contains itself; there, any value is accepted."]
    assert misfit({"name": "Rex", "age": 1, "nick": None, "mother": {"name": "M"}}, tool.input_schema) is None
    assert misfit({"name": "Rex", "age": 0}, tool.input_schema) is not None


def test_bodies_that_are_not_a_plain_object_are_one_argument() -> None:
    schemas: list[Any] = [
        {"type": "array", "items": TEXT},
        {"oneOf": [TEXT, {"type": "number"}]},
        {"type": "object", "additionalProperties": TEXT},
        {},
    ]
    for schema in schemas:
        tool = one(json_body(schema, required=True), "post")
        assert (tool.body, tool.input_schema["properties"]) == ("body", {"body": schema})
        assert tool.input_schema["required"] == ["body"]
    parameters = [{"name": "name", "in": "query", "schema": {"type": "string"}}]
    tool = one({"parameters": parameters, **json_body({"properties": {"name": {"type": "integer"}}})}, "post")
    assert tool.body == "body"
    assert tool.input_schema["properties"]["name"] == {"type": "string"}


def test_deleting_is_done_once() -> None:
    assert (one({}, "delete").effect, one({}, "delete").method) == ("once", "DELETE")


@pytest.mark.parametrize(
    ("operation", "method", "path", "why"),
    [
        ({}, "head", "/x", "HEAD returns no content"),
        ({}, "options", "/x", "OPTIONS returns"),
        ({"parameters": [{"name": "s", "in": "cookie", "required": True}]}, "get", "/x", "is in cookie"),
        ({"parameters": [{**QUERY, "style": "deepObject"}]}, "get", "/x", "deepObject"),
        ({"parameters": [{**QUERY, "explode": False, "schema": {"type": "array"}}]}, "get", "/x", "comma-separated"),
        ({"parameters": [{"$ref": "other.json#/x"}]}, "get", "/x", "its $ref cannot be resolved"),
        ({}, "get", "/x/{id}", "The path has {id}, which no parameter describes."),
        ({"requestBody": {"required": True, "content": {"multipart/form-data": {}}}}, "post", "/x", "tools send JSON"),
        ({"requestBody": {"required": True, "content": {"application/json": {}}}}, "delete", "/x", "A body of DELETE"),
        ({"servers": [{"url": "/relative"}]}, "get", "/x", "Pass a base URL"),
        ({"servers": [{"url": "https://{gone}/"}]}, "get", "/x", "Its URL cannot be used"),
        (json_body({"properties": {"a": {"type": "strin"}}}), "post", "/x", "Its schemas are not valid"),
        ({}, "get", "/a b", "Its URL cannot be used"),
        ({"parameters": [{"name": "body", "in": "query"}], **json_body({"type": "array"})}, "post", "/x",
         'a parameter named "body"'),
    ],
)  # fmt: skip
def test_operations_that_cannot_be_a_tool_are_left_out(
    operation: dict[str, Any], method: str, path: str, why: str
) -> None:
    assert why in left_out(operation, method, path)


NOTED: list[Any] = [
    ({"parameters": [{"name": "s", "in": "cookie"}]}, "get", "is in cookie, which is not supported. It was skipped"),
    ({"requestBody": {"content": {"text/plain": {}}}}, "post", "Its body is text/plain"),
    ({"security": [{"key": []}]}, "get", "It needs credentials (key)"),
    ({"parameters": [{"name": "X-Api-Key", "in": "header"}]}, "get", "X-Api-Key: {secret.X_API_KEY}"),
    (json_body({"$ref": "#/components/schemas/Gone"}), "post", "A $ref of a schema cannot be resolved"),
    (json_body({"$ref": "https://evil.example/s.json"}), "post", "A $ref of a schema cannot be resolved"),
]


@pytest.mark.parametrize(("operation", "method", "note"), NOTED)
def test_differences_of_an_import_are_noted(operation: dict[str, Any], method: str, note: str) -> None:
    found = import_openapi(spec({"/x": {method: operation}}))
    assert len(tools(found)) == 1
    assert note in found.notes[0].why
    assert len(found.notes) == 1


def test_a_body_is_sent_as_the_kind_of_json_that_the_service_accepts() -> None:
    patch: dict[str, Any] = {"application/merge-patch+json": {"schema": {"type": "object", "properties": {"a": {}}}}}
    made = one({"requestBody": {"content": patch}}, "patch")
    assert made.headers == {"Content-Type": "application/merge-patch+json"}
    plain: dict[str, Any] = {**patch, "application/json": {"schema": {"type": "object", "properties": {"b": {}}}}}
    made = one({"requestBody": {"content": plain}}, "patch")
    assert made.headers == {}
    assert list(made.input_schema["properties"]) == ["b"]


@pytest.mark.parametrize(
    ("scheme", "header", "note"),
    [
        ({"type": "http", "scheme": "bearer"}, "Authorization", "a header such as Authorization: Bearer {secret.NAME}"),
        ({"type": "http", "scheme": "basic"}, "Authorization", "a header such as Authorization: Basic {secret.NAME}"),
        ({"type": "oauth2"}, "authorization", "a header such as Authorization: Bearer {secret.NAME}"),
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, "x-key", "a header such as X-Key: {secret.NAME}"),
        ({"type": "apiKey", "in": "query", "name": "key"}, "", "Add key={secret.NAME} to the parameters in its url."),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, "Cookie", "a header such as Cookie: sid={secret.NAME}"),
    ],
)
def test_a_note_names_the_place_of_missing_credentials(scheme: dict[str, Any], header: str, note: str) -> None:
    described = spec({"/x": {"get": {"security": [{"key": []}]}}})
    described["components"]["securitySchemes"] = {"key": scheme}
    (found,) = import_openapi(described).notes
    assert note in found.why
    (found,) = import_openapi(described, headers={"X-Other": "1"}).notes
    assert note in found.why
    if header:
        assert import_openapi(described, headers={header: "{secret.NAME}"}).notes == []


def test_names() -> None:
    found = import_openapi(
        spec(
            {
                "/a": {"get": {"operationId": "same"}, "put": {"operationId": "same"}},
                "/b/{id}": {
                    "get": {"parameters": [{"name": "id", "in": "path", "schema": {}}]},
                    "delete": {"operationId": "x" * 200, "parameters": [{"name": "id", "in": "path", "schema": {}}]},
                },
            }
        ),
        base_url="http://127.0.0.1:8080/api/",
    )
    known = tools(found)
    assert list(known) == ["same", "same_2", "get_b_id", "x" * 64]
    assert known["get_b_id"].url == "http://127.0.0.1:8080/api/b/{id}"
    assert [note.why for note in found.notes] == ["Another operation has the same name, so this one is named same_2."]


def test_headers_that_are_given_are_not_arguments() -> None:
    operation: dict[str, Any] = {"parameters": [{"name": "x-api-key", "in": "header", "required": True, "schema": {}}]}
    tool = one(operation, headers={"X-API-Key": "{secret.K}"})
    assert (tool.headers, tool.input_schema["properties"]) == ({"X-API-Key": "{secret.K}"}, {})


def test_a_description_of_3_1() -> None:
    schema = {"type": "object", "properties": {"n": {"type": ["integer", "null"], "exclusiveMinimum": 0}}}
    found = import_openapi(spec({"/x": {"post": {"operationId": "op", **json_body(schema)}}}, "3.1.0"))
    assert tools(found)["op"].input_schema["properties"] == schema["properties"]


def test_references_that_grow_without_bounds_are_left_out() -> None:
    schemas: dict[str, Any] = {"s0": {"type": "string"}}
    for number in range(1, 20):
        inner = {"$ref": f"#/components/schemas/s{number - 1}"}
        schemas[f"s{number}"] = {"properties": {"a": inner, "b": inner, "c": inner}}
    document = spec({"/x": {"post": json_body({"$ref": "#/components/schemas/s19"})}, "/y": {"get": {}}})
    document["components"]["schemas"] = schemas
    found = import_openapi(document)
    assert [item.operation for item in found.left_out] == ["POST /x"]
    assert "too large" in found.left_out[0].why
    assert len(found.tools) == 1


def test_references_in_a_circle_end() -> None:
    document = spec({"/x": {"post": json_body({"$ref": "#/components/schemas/a"})}, "/y": {"$ref": "#/paths/~1y"}})
    document["components"]["schemas"] = {
        "a": {"$ref": "#/components/schemas/b"},
        "b": {"$ref": "#/components/schemas/a"},
    }
    document["components"]["parameters"] = {"p": {"$ref": "#/components/parameters/p"}}
    document["paths"]["/z"] = {"get": {"parameters": [{"$ref": "#/components/parameters/p"}]}}
    found = import_openapi(document)
    assert len(found.tools) == 1
    assert [item.operation for item in found.left_out] == ["GET /z"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "must be a JSON object"),
        ({}, "The version None is not"),
        ({"swagger": "2.0"}, "The version swagger 2.0 is not"),
        ({"openapi": "4.0"}, "The version '4.0' is not"),
        ({"openapi": "3.1.0"}, "has no paths"),
        ({"openapi": "3.1.0", "paths": {}, "x": "\0"}, "NUL"),
    ],
)
def test_invalid_descriptions_are_refused(given: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected.replace("(", r"\(")):
        import_openapi(given)


@pytest.mark.parametrize(
    "options",
    [{"name_prefix": "a b"}, {"name_prefix": "_a"}, {"base_url": "x"}, {"base_url": "https://x.example/?a=1"},
     {"base_url": "https://x.example/{a}"}, {"base_url": "file:///etc"}],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        import_openapi(spec({}), **options)


NONSENSE: list[Any] = [
    {"/x": None},
    {"/x": 5},
    {"/x": {"get": 5}},
    {"x": {"get": {}}},
    {"/x": {"get": {"parameters": 5}}},
    {"/x": {"get": {"parameters": [5]}}},
    {"/x": {"post": {"requestBody": {"content": {"application/json": 5}}}}},
    {"/x": {"post": {"requestBody": {"content": 5}}}},
    {"/x": {"post": json_body({"properties": 5, "required": 5})}},
    {"/x": {"get": {"parameters": [{"name": "a", "in": "query", "content": {}}]}}},
    {"/x": {"get": {"servers": [5], "security": [5]}}},
    {"/x": {"get": {"servers": [{"url": 5, "variables": 5}]}}},
    {"/x": {"get": {"operationId": 5, "summary": 5, "description": ["x"]}}},
]


@pytest.mark.parametrize("paths", NONSENSE)
def test_descriptions_with_nonsense_in_them_do_not_break_the_import(paths: dict[str, Any]) -> None:
    import_openapi(spec(paths))


WORDS = st.sampled_from(
    ["get", "post", "parameters", "requestBody", "content", "application/json", "schema", "$ref", "properties", "type",
     "name", "in", "path", "query", "header", "required", "items", "allOf", "servers", "url", "variables", "security",
     "nullable", "enum", "exclusiveMinimum", "minimum", "readOnly", "#/components/schemas/Pet", "#/paths", "object"]
)  # fmt: skip
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | WORDS | st.text("a/{}%\n ä", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["get", "post", "parameters", "servers"]), TREES, max_size=3), TREES)
def test_no_description_breaks_the_import(item: dict[str, Any], schema: Any) -> None:
    """What comes out is a tool or a reason, and its parts are checked like those of any other tool."""
    document = spec({"/x/{id}": item, "/y": {"post": json_body(schema)}})
    found = import_openapi(document)
    loaded = check_loaded(parse_bodies({"tools": found.tools}), ())
    assert [str(problem) for problem in loaded.errors] == []


def test_operations_that_share_parts_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A description of some hundred kilobytes can describe gigabytes of tools and notes, by $ref."""
    parameters = [{"name": f"p{number}", "in": "cookie"} for number in range(50)]
    paths = {f"/x{number}": {"$ref": "#/paths/~1shared"} for number in range(20)}
    shared: dict[str, Any] = {"parameters": parameters, "get": {}}
    found = import_openapi(spec({**paths, "/shared": shared}))
    assert len(found.tools) == 21
    assert len(found.notes) == 21 * 20
    schema = {"type": "string", "enum": [f"value {number}" for number in range(1000)]}
    shared = {"parameters": [{"name": "a", "in": "header", "schema": schema}], "get": {}}
    document = spec({**paths, "/shared": shared})
    assert len(import_openapi(document).tools) == 21
    for bound, problem in (("MAX_TOOLS_BYTES", "bytes in total"), ("MAX_PARTS", "parts")):
        with monkeypatch.context() as patch:
            patch.setattr(openapi, bound, 10_000)
            with pytest.raises(InvalidRequest, match=problem):
                import_openapi(document)


def test_operations_with_too_many_or_too_long_parameters_are_left_out() -> None:
    # Equal names get suffixes, one character longer for each of them.
    same = [{"name": "-" * (number + 1), "in": "query"} for number in range(201)]
    assert "201 parameters" in left_out({"parameters": same})
    assert "characters" in left_out({"parameters": [{"name": "n" * 201, "in": "query"}]})


def test_read_only_fields_leave_the_list_of_required_ones() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string", "readOnly": True}, "name": {"type": "string"}},
        "required": ["id", "name"],
    }
    assert one(json_body(schema), "post").input_schema["required"] == ["name"]
