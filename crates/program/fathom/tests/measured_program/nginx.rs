//! A third-party web server, started by a test.

use std::{fs, net::TcpListener};

use crate::test_bed::{RunningProgram, TestBed, until};

/// An nginx with one worker on loopback. It is stopped when this value is dropped.
pub(crate) struct Nginx {
    server: Option<RunningProgram>,
    pub(crate) port: u16,
}

impl Nginx {
    /// Starts a server that serves `index` and the `locations`. Returns `None` if nginx is not installed.
    pub(crate) fn start(stage: &TestBed, index: &str, locations: &str) -> Option<Self> {
        let program = ["/usr/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|path| fs::exists(path).unwrap())?;
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::create_dir(stage.path("www")).unwrap();
        fs::write(stage.path("www/index.html"), index).unwrap();
        let folder = stage.path("");
        let folder = folder.to_str().unwrap();
        let user = if fathom_sys::process::effective_user() == 0 { "user root;" } else { "" };
        let configuration = format!(
            "{user} daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr; events {{ }}
             http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
             fastcgi_temp_path {folder}/fast; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
             server {{ listen 127.0.0.1:{port}; root {folder}/www; {locations} }} }}"
        );
        fs::write(stage.path("nginx.conf"), configuration).unwrap();
        let mut command = stage.command(program);
        command.args(["-e", "stderr", "-c"]).arg(stage.path("nginx.conf"));
        let server = stage.spawn(command);
        until(|| fs::exists(stage.path("nginx.pid")).unwrap().then_some(()));
        Some(Self { server: Some(server), port })
    }

    /// Returns the URL of a path on the server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // nginx stops its workers itself; SIGKILL would leave them behind.
        if let Some(server) = self.server.take()
            && server.handle().send(fathom_sys::process::signal::Signal::Terminate).is_ok()
        {
            server.ends();
        }
    }
}
