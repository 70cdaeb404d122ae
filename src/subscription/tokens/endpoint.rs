//! The address of a token endpoint.

use crate::error::Error;
use std::net::IpAddr;

/// An `http` or `https` URL (RFC 3986), as far as one can be asked for tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub secure: bool,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// Host and port as a request names them.
    pub authority: String,
    /// With what follows a `?`.
    pub path: String,
}

impl Endpoint {
    pub(super) fn read(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::misuse(format!(
                "{url:?} is no token endpoint: {why}; write it as \"https://login.example.com/oauth2/token\""
            ))
        };
        // Nothing gets into the request that could end a line of it.
        if !url.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("it has other than printable ASCII characters"));
        }
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| wrong("it has no scheme"))?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(wrong("its scheme is neither https nor http")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if path.contains('#') {
            return Err(wrong("it has a fragment"));
        }
        if authority.contains('@') {
            // Not shown: it may hold a password.
            return Err(Error::misuse(
                "the URL of a token endpoint has a user in it: give the client's id and secret beside it",
            ));
        }
        let after_host = authority.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match authority[after_host..].rfind(':') {
            None => (authority, None),
            Some(colon) => {
                let (host, port) = authority.split_at(after_host + colon);
                (host, Some(&port[1..]))
            }
        };
        let port = match port {
            None => [80, 443][usize::from(secure)],
            Some(port) => match port.parse() {
                Ok(0) | Err(_) => return Err(wrong("its port is no port")),
                Ok(port) => port,
            },
        };
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest
                .strip_suffix(']')
                .filter(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
                .ok_or_else(|| wrong("what stands in brackets is no IPv6 address"))?,
            None => host,
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if bare.is_empty() || (bare == host && !bare.chars().all(is_name)) {
            return Err(wrong("its host is no name and no address"));
        }
        Ok(Endpoint {
            secure,
            host: bare.to_owned(),
            port,
            authority: authority.to_owned(),
            path: match path.starts_with('/') {
                true => path.to_owned(),
                false => format!("/{path}"),
            },
        })
    }

    /// Whether it is on this machine, so that nobody else can listen.
    pub(super) fn is_here(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|a| a.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_kind_are_read() {
        for (url, secure, host, port, authority, path) in [
            (
                "https://id.example/token",
                true,
                "id.example",
                443,
                "id.example",
                "/token",
            ),
            (
                "HTTP://id.example",
                false,
                "id.example",
                80,
                "id.example",
                "/",
            ),
            (
                "https://h:8443/a/b?c=d/e",
                true,
                "h",
                8443,
                "h:8443",
                "/a/b?c=d/e",
            ),
            ("https://h?x", true, "h", 443, "h", "/?x"),
            (
                "http://[::1]:8080/t",
                false,
                "::1",
                8080,
                "[::1]:8080",
                "/t",
            ),
            (
                "https://[2001:db8::1]/t",
                true,
                "2001:db8::1",
                443,
                "[2001:db8::1]",
                "/t",
            ),
            (
                "http://127.0.0.1:1/",
                false,
                "127.0.0.1",
                1,
                "127.0.0.1:1",
                "/",
            ),
        ] {
            let read = Endpoint::read(url).unwrap();
            let wanted = Endpoint {
                secure,
                host: host.to_owned(),
                port,
                authority: authority.to_owned(),
                path: path.to_owned(),
            };
            assert_eq!(read, wanted, "{url}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for wrong in [
            "",
            "id.example/token",
            "ftp://id.example",
            "https://",
            "https:///token",
            "https://h:0/",
            "https://h:65536/",
            "https://h:x/",
            "https://h:/",
            "https://a b/",
            "https://h/\r\nX: y",
            "https://h/#f",
            "https://[::1/",
            "https://[h]/",
            "https://::1/",
            "https://h/é",
            "https://alice:swordfish@h/",
        ] {
            let told = Endpoint::read(wrong).unwrap_err();
            assert!(
                told.message().contains("token endpoint"),
                "{wrong:?}: {told}"
            );
            assert!(!told.message().contains("swordfish"));
        }
    }

    #[test]
    fn what_is_on_this_machine() {
        for (url, here) in [
            ("http://localhost:8080/", true),
            ("http://LOCALHOST/", true),
            ("http://127.3.2.1/", true),
            ("http://[::1]/", true),
            ("http://localhost.example/", false),
            ("http://10.0.0.1/", false),
        ] {
            assert_eq!(Endpoint::read(url).unwrap().is_here(), here, "{url}");
        }
    }
}
