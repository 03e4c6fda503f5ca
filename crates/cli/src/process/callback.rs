//! What a process answers to the manager alone, about the copy of its store.

use std::sync::Arc;

use net::{Endpoint, Response, Role, Service, Status, handler_fn};

/// Answers managers by `answer`, which may wait for a disk.
pub fn serve(endpoint: &Endpoint, answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    endpoint.serve(
        Service::Callback,
        handler_fn(move |request| {
            let answer = Arc::clone(&answer);
            async move {
                if request.peer.role != Role::Manager {
                    return Response::error(Status::BadRequest, "this is for managers of the cluster");
                }
                match tokio::task::spawn_blocking(move || answer(&request.body)).await {
                    Ok(body) => Response::ok(body),
                    Err(error) => Response::error(Status::Internal, error),
                }
            }
        }),
    );
}
