//! A password in a file, which may change: a token that expires, for example. It is read for each connection, and sent on the open
//! one when it changes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::fault::loggable;
use crate::redis::script::send;

/// Interval at which the file of an open connection is read.
const INTERVAL: Duration = Duration::from_secs(2);

/// Longest reply of a server.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The file with the password of a user.
pub(crate) struct PasswordFile {
    path: PathBuf,
    /// `default` if there is none.
    username: Option<String>,
    /// Whether the file could not be read the last time, so that it is logged once.
    is_unreadable: AtomicBool,
}

impl PasswordFile {
    pub(crate) fn new(path: PathBuf, username: Option<String>) -> Self {
        Self { path, username, is_unreadable: AtomicBool::new(false) }
    }

    /// Reads the password, without the newline at its end.
    pub(crate) fn read_now(&self) -> io::Result<String> {
        std::fs::read_to_string(&self.path).map(|text| without_newline(&text))
    }

    async fn read(&self) -> io::Result<String> {
        let read = tokio::fs::read_to_string(&self.path).await.map(|text| without_newline(&text));
        let was_unreadable = self.is_unreadable.swap(read.is_err(), Relaxed);
        if let Err(error) = &read
            && !was_unreadable
        {
            tracing::warn!(%error, file = %self.path.display(), "cannot read the file with the password of Redis");
        }
        read
    }

    /// Returns a client with the password of this moment.
    pub(super) async fn client(&self, client: &Client) -> io::Result<Client> {
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_password(self.read().await?);
        Client::open(info.set_redis_settings(settings)).map_err(|error| io::Error::other(loggable(&error)))
    }
}

fn without_newline(text: &str) -> String {
    text.trim_end_matches(['\r', '\n']).to_owned()
}

/// A background task that logs in again when the password changes. Dropping it ends the task.
pub(crate) struct LoginWatch(AbortHandle);

impl LoginWatch {
    pub(crate) fn start(login: Arc<PasswordFile>, connection: &MultiplexedConnection) -> Self {
        let mut connection = connection.clone();
        let task = tokio::spawn(async move {
            // It may have changed since it was read for the connection.
            let mut sent = None;
            loop {
                if let Ok(password) = login.read().await
                    && sent.as_ref() != Some(&password)
                {
                    match log_in(&mut connection, &login, &password).await {
                        Ok(()) => sent = Some(password),
                        Err(error) => {
                            tracing::warn!(
                                error,
                                "Redis does not accept the password in the file as it is now"
                            );
                            // Not again with the same one.
                            sent = Some(password);
                        }
                    }
                }
                sleep(INTERVAL).await;
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for LoginWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends AUTH over an open connection.
async fn log_in(
    connection: &mut MultiplexedConnection,
    login: &PasswordFile,
    password: &str,
) -> Result<(), String> {
    let mut command = redis::cmd("AUTH");
    command.arg(login.username.as_deref()).arg(password);
    let reply: RedisResult<_> = match timeout(REPLY_TIMEOUT, send(connection, &command)).await {
        Ok(reply) => reply.map(drop),
        Err(_) => return Err("it does not answer".to_owned()),
    };
    reply.map_err(|error| loggable(&error))
}
