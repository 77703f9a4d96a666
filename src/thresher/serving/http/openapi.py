"""The routes as an OpenAPI document; our own page at /docs shows it without anything from elsewhere."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thresher.records import thresher_version

if TYPE_CHECKING:
    from thresher.serving.http.table import ModelRoute


def describe_routes(routes: "Sequence[ModelRoute]") -> dict[str, Any]:
    """OpenAPI 3.1."""
    kinds = list(dict.fromkeys(route.takes for route in routes))
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths = {}
    for route in routes:
        body = {"schema": by_kind[route.takes], "example": route.example}
        paths[route.path] = {
            "post": {
                "summary": route.says,
                "description": f"For clients of {route.clients}.",
                "requestBody": {"required": True, "content": {"application/json": body}},
                "responses": {
                    "200": {"description": "the answer"},
                    "400": {"description": "the request is empty or bad (422 in the schema of TEI)"},
                    "413": {"description": "too large to be computed in time, or a body beyond the limit"},
                    "429": {"description": "others wait already; Retry-After says for how long"},
                    "503": {"description": "the engine does not answer, or the server shuts down"},
                    "504": {"description": "the deadline passed"},
                },
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "thresher serve", "version": thresher_version()},
        "paths": paths,
        "components": {"schemas": components},
    }
