//! Finds the handler for a path and a method, in a tree of path segments.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::failure::Failure;
use crate::handlers::{Handler, State};
use crate::http::{Method, Request};
use crate::middleware::Answer;

/// Routes such as `/documents/{}/page`.
#[derive(Default)]
pub(crate) struct Router {
    root: Node,
}

#[derive(Default)]
struct Node {
    literals: BTreeMap<&'static str, Node>,
    /// Where any segment may stand.
    parameter: Option<Box<Node>>,
    handlers: BTreeMap<Method, Handler>,
}

impl Router {
    /// Adds a route; a segment `{}` stands for any one, and is given to the handler.
    pub(crate) fn add(&mut self, method: Method, route: &'static str, handler: Handler) {
        let segments = route.split('/').filter(|segment| !segment.is_empty());
        let node = segments.fold(&mut self.root, |node, segment| match segment {
            "{}" => node.parameter.get_or_insert_default(),
            literal => node.literals.entry(literal).or_default(),
        });
        node.handlers.insert(method, handler);
    }

    /// Lets the handler for this request answer it.
    #[inline(never)]
    pub(crate) fn dispatch(&self, request: &Request<'_>, state: &mut State) -> Answer {
        let mut node = &self.root;
        let mut parameter = "";
        for segment in &request.segments {
            node = match (node.literals.get(segment.as_str()), &node.parameter) {
                (Some(literal), _) => literal,
                (None, Some(any)) => {
                    parameter = segment;
                    any
                }
                (None, None) => return Err(Failure::NoSuchRoute),
            };
        }
        if node.handlers.is_empty() {
            return Err(Failure::NoSuchRoute);
        }
        let handler = node
            .handlers
            .get(&request.method)
            .ok_or(Failure::MethodNotAllowed)?;
        handler(state, request, parameter)
    }
}
