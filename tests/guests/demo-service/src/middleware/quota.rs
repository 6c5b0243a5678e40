//! No client may take more than its share. The service has no clock: a window is a number of
//! requests.

use alloc::collections::BTreeMap;
use alloc::string::String;

use super::{Answer, Layer, Next};
use crate::failure::Failure;
use crate::handlers::State;
use crate::http::Request;

const WINDOW: usize = 1024;
const SHARE: u32 = 256;

/// Counts the requests of each client in the present window; a window has at most 1024 clients.
#[derive(Default)]
pub(super) struct Quota {
    seen: usize,
    by_client: BTreeMap<String, u32>,
}

impl Quota {
    fn admit(&mut self, client: &str) -> bool {
        if self.seen == WINDOW {
            self.seen = 0;
            self.by_client.clear();
        }
        self.seen += 1;
        match self.by_client.get_mut(client) {
            Some(count) => {
                *count += 1;
                *count <= SHARE
            }
            None => {
                self.by_client.insert(client.into(), 1);
                true
            }
        }
    }
}

impl Layer for Quota {
    fn call(&mut self, request: Request<'_>, state: &mut State, next: Next<'_>) -> Answer {
        if self.admit(request.header("x-client").unwrap_or_default()) {
            next.run(request, state)
        } else {
            Err(Failure::OverQuota)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_greedy_client_waits_for_the_next_window() {
        let mut quota = Quota::default();
        let admitted = (0..300).filter(|_| quota.admit("greedy")).count();
        assert_eq!(admitted, 256);
        assert!(quota.admit("modest"));
        let rest = WINDOW - 301;
        assert!((0..rest).all(|number| quota.admit(&format!("{number}"))));
        assert!(quota.admit("greedy"));
        assert_eq!(quota.by_client.len(), 1);
    }
}
