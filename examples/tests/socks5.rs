//! The SOCKS5 example, through a proxy that knows names which nobody else knows.

use laneway::broker::{ClusterConfig, Listen, Server};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Ends the program with the test, whichever way the test ends.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    profile
        .join("examples")
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// One client of the proxy: whatever it asks for is the broker.
async fn proxied(mut client: TcpStream, broker: String, asked: Arc<Mutex<Vec<String>>>) {
    let mut hello = [0; 3];
    client.read_exact(&mut hello).await.unwrap();
    client.write_all(&[5, 0]).await.unwrap();
    let mut head = [0; 5];
    client.read_exact(&mut head).await.unwrap();
    assert_eq!(head[..4], [5, 1, 0, 3]);
    let mut name = vec![0; usize::from(head[4])];
    client.read_exact(&mut name).await.unwrap();
    let port = client.read_u16().await.unwrap();
    let name = String::from_utf8(name).unwrap();
    asked.lock().unwrap().push(format!("{name}:{port}"));
    let mut broker = TcpStream::connect(broker).await.unwrap();
    client
        .write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 80])
        .await
        .unwrap();
    let _ = tokio::io::copy_bidirectional(&mut client, &mut broker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_are_reached_through_the_proxy() {
    const RECORDS: usize = 20;
    let listen = Listen {
        advertised: vec![("kafka-1.inside".to_owned(), 9092)],
        ..Listen::default()
    };
    let server = Server::start(ClusterConfig::default(), listen)
        .await
        .unwrap();
    {
        let mut cluster = server.cluster();
        cluster.create_topic("t", 1).unwrap();
        let now = cluster.now();
        for _ in 0..RECORDS {
            let record = (Some(&b"k"[..]), Some(&b"v"[..]));
            cluster.append_records(now, "t", 0, &[record]).unwrap();
        }
    }
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap().to_string();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (log, broker) = (asked.clone(), server.bootstrap()[0].clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = proxy.accept().await {
            tokio::spawn(proxied(client, broker.clone(), log.clone()));
        }
    });
    let mut child = Command::new(example("socks5"))
        .args([&address, "bootstrap.inside:9092", "t", "g"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    let program = Program(child);
    let lines = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(out).lines().take(RECORDS);
        lines.map(|line| line.unwrap()).collect::<Vec<String>>()
    });
    let lines = lines.await.unwrap();
    drop(program);
    assert_eq!(lines.len(), RECORDS, "the program ended early");
    assert_eq!(lines[RECORDS - 1], format!("t-0 {}", RECORDS - 1));
    let asked = asked.lock().unwrap();
    assert_eq!(asked[0], "bootstrap.inside:9092");
    assert!(
        asked.contains(&"kafka-1.inside:9092".to_owned()),
        "{asked:?}"
    );
}
