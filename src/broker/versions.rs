//! Which APIs and versions are offered, and ApiVersions itself.

use bytes::Bytes;
use kafka_protocol::messages::api_versions_response::{ApiVersion, ApiVersionsResponse};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest};
use kafka_protocol::protocol::Decodable;

use super::codes;
use super::config::ClusterConfig;
use super::core::{Call, Outcome};

/// Whether this version of `api` is served.
pub(crate) fn offered(cfg: &ClusterConfig, api: ApiKey, version: i16) -> bool {
    range(cfg, api).is_some_and(|(min, max)| (min..=max).contains(&version))
}

/// The answer to a version of ApiVersions that we do not know: version 0, naming what we do know.
pub(crate) fn refused(cfg: &ClusterConfig, call: &Call) -> Option<Bytes> {
    let body = ApiVersionsResponse::default()
        .with_error_code(codes::UNSUPPORTED_VERSION)
        .with_api_keys(list(cfg, |api| api == ApiKey::ApiVersions));
    call.frame_as(&body, 0)
}

pub(crate) fn api_versions(cfg: &ClusterConfig, call: &Call, body: &mut Bytes) -> Outcome {
    let Ok(req) = ApiVersionsRequest::decode(body, call.version) else {
        return Outcome::Close;
    };
    let named = [&req.client_software_name, &req.client_software_version];
    if call.version >= 3 && !named.iter().all(|name| software_name_allowed(name)) {
        let refusal = ApiVersionsResponse::default().with_error_code(codes::INVALID_REQUEST);
        return call.answer(&refusal);
    }
    let mut body = ApiVersionsResponse::default()
        .with_error_code(call.faults.error.unwrap_or(codes::NONE))
        .with_api_keys(list(cfg, |_| true));
    if call.version >= 1 {
        body.throttle_time_ms = call.faults.throttle_ms;
    }
    call.answer(&body)
}

/// Letters and digits, and between them dots and dashes.
fn software_name_allowed(name: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    ends(name.chars().next())
        && ends(name.chars().last())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
}

fn list(cfg: &ClusterConfig, wanted: impl Fn(ApiKey) -> bool) -> Vec<ApiVersion> {
    let known = KNOWN.iter().map(|&(api, _, _)| api);
    known
        .filter(|&api| wanted(api))
        .filter_map(|api| {
            let (min, max) = range(cfg, api)?;
            let entry = ApiVersion::default().with_api_key(api as i16);
            Some(entry.with_min_version(min).with_max_version(max))
        })
        .collect()
}

/// What we know of `api`, within what the settings allow.
fn range(cfg: &ClusterConfig, api: ApiKey) -> Option<(i16, i16)> {
    let &(_, min, max) = KNOWN.iter().find(|k| k.0 == api)?;
    let &(low, high) = cfg.versions.get(&(api as i16)).unwrap_or(&(min, max));
    let (min, max) = (min.max(low), max.min(high));
    (min <= max).then_some((min, max))
}

/// OffsetCommit 10 and OffsetFetch 10 (topic ids), ListOffsets 11 and InitProducerId 6 are left
/// out: our codec has no requests of them.
const KNOWN: &[(ApiKey, i16, i16)] = &[
    (ApiKey::Produce, 3, 13),
    (ApiKey::Fetch, 4, 18),
    (ApiKey::ListOffsets, 1, 10),
    (ApiKey::Metadata, 0, 13),
    (ApiKey::OffsetCommit, 2, 9),
    (ApiKey::OffsetFetch, 1, 9),
    (ApiKey::FindCoordinator, 0, 6),
    (ApiKey::JoinGroup, 0, 9),
    (ApiKey::Heartbeat, 0, 4),
    (ApiKey::LeaveGroup, 0, 5),
    (ApiKey::SyncGroup, 0, 5),
    (ApiKey::DescribeGroups, 0, 6),
    (ApiKey::ListGroups, 0, 5),
    (ApiKey::SaslHandshake, 1, 1),
    (ApiKey::ApiVersions, 0, 4),
    (ApiKey::CreateTopics, 2, 7),
    (ApiKey::DeleteTopics, 1, 6),
    (ApiKey::DeleteRecords, 0, 2),
    (ApiKey::InitProducerId, 0, 5),
    (ApiKey::OffsetForLeaderEpoch, 2, 4),
    (ApiKey::DescribeConfigs, 1, 4),
    (ApiKey::SaslAuthenticate, 0, 2),
    (ApiKey::CreatePartitions, 0, 3),
    (ApiKey::DeleteGroups, 0, 2),
    (ApiKey::OffsetDelete, 0, 0),
    (ApiKey::DescribeCluster, 0, 2),
    (ApiKey::ConsumerGroupHeartbeat, 0, 1),
];
