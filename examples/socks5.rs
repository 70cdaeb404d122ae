//! Reads a topic through a SOCKS5 proxy: a connector of the program's own.
//!
//!     socks5 PROXY BROKER TOPIC GROUP
//!
//! The proxy looks up the names, so brokers whose names mean nothing here are reached by the names
//! that they advertise. TLS (`Kafka::tls`) would run through it and check those names.

use laneway::{Connector, Kafka, Record, Topics};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A SOCKS5 proxy without a password (RFC 1928).
struct Socks5 {
    proxy: String,
}

impl Connector for Socks5 {
    type Stream = TcpStream;

    async fn connect(&self, host: String, port: u16) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.proxy).await?;
        stream.set_nodelay(true)?;
        // Version 5, one method: no authentication.
        stream.write_all(&[5, 1, 0]).await?;
        let mut method = [0; 2];
        stream.read_exact(&mut method).await?;
        if method != [5, 0] {
            return Err(io::Error::other("the proxy wants authentication"));
        }
        // Connect, to a name.
        let length = u8::try_from(host.len()).map_err(io::Error::other)?;
        let mut request = vec![5, 1, 0, 3, length];
        request.extend(host.bytes());
        request.extend(port.to_be_bytes());
        stream.write_all(&request).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        if head[1] != 0 {
            let why = format!(
                "the proxy cannot reach {host}:{port} (SOCKS5 error {})",
                head[1]
            );
            return Err(io::Error::other(why));
        }
        // Where the proxy connects from: an address and a port, of no use here.
        let rest = match head[3] {
            1 => 4,
            4 => 16,
            _ => usize::from(stream.read_u8().await?),
        };
        let mut from = vec![0; rest + 2];
        stream.read_exact(&mut from).await?;
        Ok(stream)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [proxy, broker, topic, group] = &args[..] else {
        return Err("usage: socks5 PROXY BROKER TOPIC GROUP".into());
    };
    let connector = Socks5 {
        proxy: proxy.clone(),
    };
    Kafka::new([broker.clone()])
        .connector(connector)
        .subscribe(Topics::named([topic.as_str()]).group(group.as_str()))
        .run(|record: Record| async move {
            println!(
                "{}-{} {}",
                record.topic(),
                record.partition(),
                record.offset()
            );
        })
        .await?;
    Ok(())
}
