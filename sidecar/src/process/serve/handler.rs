//! A connection with the proxy that handles its requests.

use std::sync::Arc;

use http::{Request, Response, StatusCode};

use crate::inbound::client_body::ClientBody;
use crate::inbound::table::activity::Activity;
use crate::proxy::Proxy;
use crate::proxy::connection::Connection;
use crate::upstream::response_body::ResponseBody;
use sluice_host::guard::{Panicked, guard};

/// A connection with the proxy that handles its requests.
pub(super) struct Handler {
    pub(super) proxy: Arc<Proxy>,
    pub(super) connection: Connection,
}

impl Handler {
    pub(super) fn activity(&self) -> &Arc<Activity> {
        self.connection.permit.activity()
    }

    /// Returns the response to a request. A panic is a response too.
    pub(super) async fn respond(&self, request: Request<ClientBody>) -> Response<ResponseBody> {
        match guard(self.proxy.respond(&self.connection, request)).await {
            Ok(response) => response,
            Err(Panicked) => {
                self.proxy.metrics.panics.inc();
                let mut response = Response::new(ResponseBody::empty());
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                response
            }
        }
    }
}
