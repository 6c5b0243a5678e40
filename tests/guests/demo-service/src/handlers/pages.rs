//! HTML: one document as a page, and a catalogue of those found.

use alloc::vec::Vec;

use serde_json_alloc::{Value, json};

use super::State;
use crate::failure::Failure;
use crate::http::status::Status;
use crate::http::{Request, Response};
use crate::middleware::Answer;
use crate::ranking::{self, Order};
use crate::template::render;

const MAX_ROWS: usize = 50;

pub(super) const TEMPLATES: [(&str, &str); 5] = [
    (
        "page",
        "<!DOCTYPE html>\n<html><head><title>{{title}}</title></head><body>{{>article}}\
         </body></html>\n",
    ),
    (
        "article",
        "<article><h1>{{title}}</h1>{{#author}}<p class=\"author\">{{name}}, {{team}}</p>\
         {{/author}}{{^author}}<p>Anonymous</p>{{/author}}<ul class=\"tags\">\
         {{#tags}}<li>{{.}}</li>{{/tags}}</ul><p>{{summary}}</p>\
         {{#sections}}{{>section}}{{/sections}}</article>",
    ),
    (
        "section",
        "<section><h2>{{heading}}</h2><p>{{text}}</p>\
         {{#sections}}{{>section}}{{/sections}}</section>",
    ),
    (
        "catalogue",
        "<!DOCTYPE html>\n<html><head><title>{{query}}</title></head><body><table>\
         {{#rows}}{{>row}}{{/rows}}</table>{{^rows}}<p>Nothing found.</p>{{/rows}}\
         </body></html>\n",
    ),
    (
        "row",
        "<tr><td>{{id}}</td><td>{{document}}</td><td>{{#tags}}<i>{{.}}</i> {{/tags}}</td>\
         <td>{{price}}</td><td>{{stock}}</td></tr>",
    ),
];

pub(super) fn document(state: &mut State, _: &Request<'_>, id: &str) -> Answer {
    let document = state.store.get(id).ok_or(Failure::NoSuchDocument)?;
    let page = render(&state.templates, "page", &document.value)?;
    Ok(html(page.into_bytes()))
}

pub(super) fn catalogue(state: &mut State, request: &Request<'_>, _: &str) -> Answer {
    let query = request
        .parameter("q")
        .ok_or(Failure::BadRequest("q is missing"))?;
    let hits = ranking::search(&state.store, query, Order::Title);
    let rows: Vec<Value> = hits
        .iter()
        .take(MAX_ROWS)
        .filter_map(|hit| {
            let value = &state.store.peek(&hit.id)?.value;
            Some(json!({
                "id": &*hit.id,
                "document": hit.title,
                "tags": value.get("tags"),
                "price": value.get("price"),
                "stock": value.get("stock"),
            }))
        })
        .collect();
    let page = render(
        &state.templates,
        "catalogue",
        &json!({ "query": query, "rows": rows }),
    )?;
    Ok(html(page.into_bytes()))
}

fn html(page: Vec<u8>) -> Response {
    Response::new(Status::Ok, "text/html; charset=utf-8", page)
}
