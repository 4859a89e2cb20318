//! The OpenAPI 3.1 document and the reference in `docs`, written from the table of endpoints.

use super::problem::Problem;
use super::schema::{Direction, Schemas};
use super::table::{Access, ENDPOINTS, Endpoint, Place, refusal_media};
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// The document as it is served.
pub(super) fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        // A value's printing cannot fail: its keys are strings.
        serde_json::to_string_pretty(&build()).unwrap_or_default() + "\n"
    })
}

/// Every file that is written from the table, with its path from the repository's root.
pub fn generated() -> [(&'static str, String); 2] {
    [("docs/reference/openapi.json", document().to_owned()), ("docs/reference/api.md", reference())]
}

fn build() -> Value {
    let schemas = Schemas::default();
    let problem = schemas.of::<Problem>(Direction::Response);
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in &ENDPOINTS {
        let entry = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        entry[endpoint.method.to_lowercase()] = operation(endpoint, &schemas, &problem);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sealane admin API",
            "version": "1",
            "description": "The API of a running gateway. Operators use it over the admin socket, or over TLS with a client certificate.",
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": { "schemas": schemas.into_components() },
    })
}

fn operation(endpoint: &Endpoint, schemas: &Schemas, problem: &Value) -> Value {
    let mut responses = Map::new();
    let answer = &endpoint.answer;
    let mut good = json!({ "description": described(answer.doc, answer.status) });
    if !answer.media.is_empty() {
        good["content"] = json!({ answer.media: { "schema": (answer.schema)(schemas) } });
    }
    if !answer.headers.is_empty() {
        let headers: Map<String, Value> = answer
            .headers
            .iter()
            .map(|(name, doc)| ((*name).to_owned(), json!({ "description": doc, "schema": { "type": "string" } })))
            .collect();
        good["headers"] = json!(headers);
    }
    responses.insert(answer.status.to_string(), good);
    for (status, is_problem) in endpoint.refusals() {
        let schema = if is_problem { problem.clone() } else { json!({ "type": "string" }) };
        let content = json!({ refusal_media(is_problem): { "schema": schema } });
        responses.insert(status.to_string(), json!({ "description": described("", status), "content": content }));
    }
    let mut out = json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "description": sentences(endpoint),
        "responses": responses,
    });
    let parameters: Vec<Value> = endpoint
        .parameters
        .iter()
        .map(|p| {
            let place = match p.place {
                Place::Query => "query",
                Place::Path => "path",
                Place::Header => "header",
            };
            let required = p.place != Place::Query;
            json!({ "name": p.name, "in": place, "description": p.doc, "required": required, "schema": p.kind.schema() })
        })
        .collect();
    if !parameters.is_empty() {
        out["parameters"] = json!(parameters);
    }
    if let Some(body) = &endpoint.body {
        let content = json!({ body.media: { "schema": (body.schema)(schemas) } });
        out["requestBody"] = json!({ "description": body.doc, "required": true, "content": content });
    }
    out
}

/// What there is to say of an endpoint, in sentences.
fn sentences(endpoint: &Endpoint) -> String {
    let who = match endpoint.access {
        Access::Everyone => "",
        Access::Operators => "Only for operators.",
    };
    let all = [endpoint.doc, who];
    all.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

fn described(doc: &str, status: u16) -> String {
    let words = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
    if doc.is_empty() { words.to_owned() } else { doc.to_owned() }
}

/// The reference in Markdown.
fn reference() -> String {
    let mut out = include_str!("reference.md").to_owned();
    for endpoint in &ENDPOINTS {
        out += &format!("\n## `{} {}`\n\n{}.", endpoint.method, endpoint.path, endpoint.summary);
        let more = sentences(endpoint);
        if !more.is_empty() {
            out += &format!(" {more}");
        }
        out += "\n\n";
        if !endpoint.parameters.is_empty() {
            out += "| parameter | |\n|---|---|\n";
            for p in endpoint.parameters {
                out += &format!("| `{}` | {} |\n", p.name, p.doc);
            }
            out += "\n";
        }
        if let Some(body) = &endpoint.body {
            let (media, limit) = (body.media, body.limit);
            let size = if limit >= 1 << 20 { format!("{} MiB", limit >> 20) } else { format!("{} KiB", limit >> 10) };
            out += &format!("Body: {} `{media}`, at most {size}.\n\n", body.doc);
        }
        let answer = &endpoint.answer;
        let media = if answer.media.is_empty() { "no body".to_owned() } else { format!("`{}`", answer.media) };
        out += &format!("Response: {} ({media}).", answer.status);
        if !answer.doc.is_empty() {
            out += &format!(" {}", answer.doc);
        }
        let refusals: Vec<String> = endpoint.refusals().iter().map(|(status, _)| status.to_string()).collect();
        if !refusals.is_empty() {
            out += &format!(" Refusals: {}.", refusals.join(", "));
        }
        out += "\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = build();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut count = 0;
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
            count += 1;
        }
        assert!(count > 20 && schemas.contains_key("Problem") && schemas.contains_key("Status"));
    }

    #[test]
    fn every_endpoint_is_described() {
        let document = build();
        for endpoint in &ENDPOINTS {
            let operation = &document["paths"][endpoint.path][endpoint.method.to_lowercase()];
            assert_eq!(operation["operationId"], endpoint.id);
            assert!(operation["responses"][endpoint.answer.status.to_string()]["description"].is_string());
            assert_eq!(operation["responses"]["403"].is_object(), endpoint.access == Access::Operators);
        }
    }

    #[test]
    fn generated_files_are_up_to_date() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (name, wanted) in generated() {
            let written = std::fs::read_to_string(root.join(name)).unwrap_or_default();
            assert!(written == wanted, "{name} is stale: run `cargo xtask generate`");
        }
    }
}
