//! The device flow and the machine config of Talos nodes, on the boot HTTPS listener.
//!
//! Decides forms and headers only; who is approved is decided in `gateway_core::talos::device`.
//! Nothing secret stands in a URL, and no body is logged. Of an answer that is not 200, Talos prints the
//! first 32 bytes on its console, so those say what is missing.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_core::gateway::ConfigFacts;
use gateway_core::talos::device::{
    BEARER_SECS, DeviceRequest, FLOW_SECS, INTERVAL_SECS, OAuthError, TokenRequest,
};
use gateway_core::talos::render::Values;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, header};
use serde_json::json;
use zeroize::Zeroizing;

use crate::handle::Handle;
use crate::shell::http::{self, Body};
use crate::talos::Templates;
use crate::talos::ask::Origin;
use crate::telemetry;

const DEVICE_PATH: &str = "/device/code";
const TOKEN_PATH: &str = "/token";
const CONFIG_PATH: &str = "/talos/config";
/// `verification_uri`, which RFC 8628 section 3.2 requires: a page that says there is nothing to do.
const PAGE_PATH: &str = "/device";
/// Largest form.
const FORM_MAX_BYTES: usize = 8 * 1024;
const FORM_LIMIT: Duration = Duration::from_secs(10);

/// What these routes need.
#[derive(Clone)]
pub struct TalosService {
    /// The driver.
    pub handle: Handle,
    /// Templates and values.
    pub templates: Arc<Templates>,
    /// Host of our URLs.
    pub host: String,
}

/// Whether a path is one of ours.
pub fn is_path(path: &str) -> bool {
    [DEVICE_PATH, TOKEN_PATH, CONFIG_PATH, PAGE_PATH].contains(&path)
}

impl TalosService {
    /// Answers one request.
    pub async fn answer(&self, peer: SocketAddr, request: Request<Incoming>) -> Response<Body> {
        let get = *request.method() == Method::GET;
        let post = *request.method() == Method::POST;
        let path = request.uri().path().to_owned();
        match path.as_str() {
            CONFIG_PATH if get => self.config(peer.ip(), &request).await,
            PAGE_PATH if get => text(
                StatusCode::OK,
                "nothing to do here: the machine's one-time code approves it\n",
            ),
            DEVICE_PATH | TOKEN_PATH if post => {
                let body = http::read_body(request, FORM_MAX_BYTES, FORM_LIMIT).await;
                let body = match body {
                    Ok(body) => body,
                    Err(refusal) => {
                        telemetry::refused("boot", peer, &refusal.reason);
                        return text(refusal.status, "not taken\n");
                    }
                };
                let Some(form) = Form::parse(&body) else {
                    return json_error(StatusCode::BAD_REQUEST, "invalid_request");
                };
                if path == DEVICE_PATH {
                    self.device(peer.ip(), &form).await
                } else {
                    self.token(peer.ip(), &form).await
                }
            }
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "another method\n"),
        }
    }

    async fn device(&self, peer: IpAddr, form: &Form) -> Response<Body> {
        let request = DeviceRequest {
            client_id: form.text("client_id"),
            code: Zeroizing::new(form.text("code")),
            uuid: form.get("uuid"),
            mac: form.get("mac"),
        };
        match self.handle.device_code(Origin::of(peer), request).await {
            Ok(Ok(answer)) => http::json(
                StatusCode::OK,
                &json!({
                    "device_code": *answer.device_code,
                    "user_code": answer.user_code,
                    "verification_uri": format!("https://{}{PAGE_PATH}", self.host),
                    "expires_in": FLOW_SECS,
                    "interval": INTERVAL_SECS,
                }),
            ),
            Ok(Err(error)) => oauth_error(error),
            Err(_) => busy(),
        }
    }

    async fn token(&self, peer: IpAddr, form: &Form) -> Response<Body> {
        let request = TokenRequest {
            client_id: form.text("client_id"),
            grant_type: form.text("grant_type"),
            device_code: Zeroizing::new(form.text("device_code")),
        };
        match self.handle.device_token(Origin::of(peer), request).await {
            Ok(Ok(token)) => http::json(
                StatusCode::OK,
                &json!({
                    "access_token": *token,
                    "token_type": "Bearer",
                    "expires_in": BEARER_SECS,
                }),
            ),
            Ok(Err(error)) => oauth_error(error),
            Err(_) => busy(),
        }
    }

    async fn may_have_config(
        &self,
        peer: IpAddr,
        bearer: &Zeroizing<String>,
        made: bool,
    ) -> Result<ConfigFacts, Response<Body>> {
        let asked = self
            .handle
            .talos_config(Origin::of(peer), bearer.clone(), made);
        match asked.await {
            Ok(Ok(facts)) => Ok(facts),
            // What the console shows of it; the log has the reason.
            Ok(Err(reason)) if reason.code == "machine.state" => Err(text(
                StatusCode::FORBIDDEN,
                "await approval: machine is held\n",
            )),
            Ok(Err(_)) => Err(text(
                StatusCode::FORBIDDEN,
                "await approval: no good bearer\n",
            )),
            Err(_) => Err(busy()),
        }
    }

    async fn config(&self, peer: IpAddr, request: &Request<Incoming>) -> Response<Body> {
        let given = request.headers().get(header::AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok());
        let bearer = given.and_then(|text| text.split_once(' '));
        let bearer = bearer.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let bearer = Zeroizing::new(bearer.map_or("", |(_, token)| token.trim()).to_owned());
        let facts = match self.may_have_config(peer, &bearer, false).await {
            Ok(facts) => facts,
            Err(refusal) => return refusal,
        };
        let (machine, class) = (facts.machine.0.clone(), facts.class.clone());
        match self.templates.render(&machine, &class, variables(&facts)) {
            Ok(config) => {
                // The code is used up by what is handed out, and not by a mistake of ours.
                if let Err(refusal) = self.may_have_config(peer, &bearer, true).await {
                    return refusal;
                }
                let bytes = Zeroizing::new(config.as_bytes().to_vec());
                let mut response =
                    http::response(StatusCode::OK, "application/yaml", Bytes::from_owner(bytes));
                http::set(&mut response, header::CACHE_CONTROL, "no-store");
                response
            }
            Err(error) => {
                let error = telemetry::chain(&error);
                tracing::error!(
                    machine_id = machine,
                    error,
                    "talos: the config cannot be made"
                );
                text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the config template has mistakes\n",
                )
            }
        }
    }
}

/// The gateway's own variables of a machine.
fn variables(facts: &ConfigFacts) -> Values {
    let mut values = Values::new();
    values.insert("machine".to_owned(), facts.machine.0.clone());
    values.insert("class".to_owned(), facts.class.clone());
    values.insert("address".to_owned(), facts.address.to_string());
    if let Some(serial) = &facts.serial {
        values.insert("serial".to_owned(), serial.clone());
    }
    if let Some(mac) = facts.mac {
        values.insert("mac".to_owned(), mac.to_string());
    }
    values
}

/// A form (`application/x-www-form-urlencoded`); the first of a name counts.
struct Form(Vec<(String, Zeroizing<String>)>);

impl Form {
    fn parse(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = Zeroizing::new(value.replace('+', " "));
            Some((
                http::percent_decode(name)?,
                Zeroizing::new(http::percent_decode(&value)?),
            ))
        });
        pairs.collect::<Option<Vec<_>>>().map(Self)
    }

    fn get(&self, name: &str) -> Option<String> {
        let mut pairs = self.0.iter();
        let found = pairs.find(|(key, _)| key == name);
        found.map(|(_, value)| value.to_string())
    }

    fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default()
    }
}

fn oauth_error(error: OAuthError) -> Response<Body> {
    let status = match error {
        OAuthError::InvalidClient => StatusCode::UNAUTHORIZED,
        OAuthError::InvalidGrant
        | OAuthError::UnsupportedGrantType
        | OAuthError::AuthorizationPending
        | OAuthError::SlowDown
        | OAuthError::AccessDenied
        | OAuthError::ExpiredToken => StatusCode::BAD_REQUEST,
    };
    json_error(status, error.name())
}

fn json_error(status: StatusCode, name: &str) -> Response<Body> {
    http::json(status, &json!({ "error": name }))
}

fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    let mut response = http::response(status, "text/plain", body);
    http::set(&mut response, header::CACHE_CONTROL, "no-store");
    response
}

fn busy() -> Response<Body> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "busy, try again\n");
    http::set(&mut response, header::RETRY_AFTER, "5");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_decoded_and_broken_ones_are_not() {
        let form =
            Form::parse(b"client_id=vestibule&code=a%2Bb&code=2&uuid=&x=a+b").expect("a form");
        assert_eq!(form.text("code"), "a+b");
        assert_eq!(form.get("uuid").as_deref(), Some(""));
        assert_eq!(form.text("x"), "a b");
        assert_eq!(form.get("mac"), None);
        for bad in [&b"a=%zz"[..], b"a=%e", b"\xff=1", b"a=%ff"] {
            assert!(Form::parse(bad).is_none(), "{bad:?}");
        }
        assert!(Form::parse(b"").is_some_and(|form| form.0.is_empty()));
    }

    /// Talos prints 32 bytes of an answer that is not 200.
    #[test]
    fn hints_fit_the_console_of_talos() {
        for hint in [
            "await approval: machine is held\n",
            "await approval: no good bearer\n",
            "the config template has mistakes\n",
        ] {
            assert!(hint.trim_end().len() <= 32, "{hint}");
        }
    }
}
