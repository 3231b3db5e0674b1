//! Makes the admin endpoint of a running site reachable from the host, for as long as somebody
//! looks: a TCP forward from the loopback interface into the desk's namespace.

use std::io::Write as _;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::admin::ADMIN_PORT;
use crate::netns::{MGMT_ADDR, Netns};
use crate::site::Site;

/// Forwards `127.0.0.1:9443` to the admin endpoint until Ctrl-C ends the program.
///
/// # Errors
/// The port is in use.
pub fn serve_until_interrupted(site: &Site) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, ADMIN_PORT))
        .with_context(|| format!("cannot listen on 127.0.0.1:{ADMIN_PORT}"))?;
    let desk = site.desk.files.display();
    println!("reachable until Ctrl-C, with the owner's certificate:");
    println!(
        "  curl --cacert {desk}/admin-ca.pem --cert {desk}/owner.pem --key {desk}/owner.key https://localhost:{ADMIN_PORT}/"
    );
    std::io::stdout().flush()?;
    for connection in listener.incoming().flatten() {
        let desk = site.desk.ns.clone();
        std::thread::spawn(move || {
            // One refused or broken connection is the browser's to retry.
            let _ = carry(&connection, &desk);
        });
    }
    Ok(())
}

fn carry(client: &TcpStream, desk: &Netns) -> Result<()> {
    let addr = SocketAddr::from((MGMT_ADDR, ADMIN_PORT));
    let server = desk.enter(|| Ok(TcpStream::connect_timeout(&addr, Duration::from_secs(5))?))?;
    std::thread::scope(|scope| {
        scope.spawn(|| copy(client, &server));
        copy(&server, client);
    });
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
