//! Reads the answer to a fetch; records stay slices of the frame.

use super::message::{Code, EpochEnd, FetchResponse, FetchResponsePartition, FetchResponseTopic};
use super::reader::Reader;
use super::response::{Read, node_endpoints, topic};

pub(super) fn fetch(r: &mut Reader<'_>, version: i16) -> Read<FetchResponse> {
    let throttle = r.millis()?;
    let code = if version >= 7 { r.code()? } else { Code(0) };
    let session_id = if version >= 7 { r.i32()? } else { 0 };
    let topics = r.list(3, |r| {
        let (name, id) = topic(r, version >= 13)?;
        let partitions = r.list(PARTITION_BYTES_MIN, |r| partition(r, version))?;
        r.skip_tags()?;
        Ok(FetchResponseTopic {
            name,
            id,
            partitions,
        })
    })?;
    let mut endpoints = Vec::new();
    r.tags(|tag, r| {
        if tag != TAG_ENDPOINTS || version < 16 {
            return Ok(false);
        }
        endpoints = node_endpoints(r)?;
        Ok(true)
    })?;
    Ok(FetchResponse {
        throttle,
        code,
        session_id,
        topics,
        endpoints,
    })
}

fn partition(r: &mut Reader<'_>, version: i16) -> Read<FetchResponsePartition> {
    let partition = r.i32()?;
    let code = r.code()?;
    let high_watermark = r.i64()?;
    let last_stable_offset = r.i64()?;
    let log_start = if version >= 5 { r.i64()? } else { -1 };
    // Null for read_uncommitted; an empty list says the same.
    let aborted = r.nullable_list(16, |r| {
        let aborted = (r.i64()?, r.i64()?);
        r.skip_tags()?;
        Ok(aborted)
    })?;
    let preferred_replica = if version >= 11 { r.i32()? } else { -1 };
    // Null beside error 76, empty beside every other.
    let records = r.nullable_bytes()?.unwrap_or_default();
    let mut diverging = None;
    let mut current_leader = None;
    r.tags(|tag, r| {
        match tag {
            TAG_DIVERGING => {
                let end = EpochEnd {
                    epoch: r.i32()?,
                    end_offset: r.i64()?,
                };
                // Below zero is the schema's "none".
                diverging = (end.epoch >= 0).then_some(end);
            }
            TAG_LEADER => current_leader = Some((r.i32()?, r.i32()?)),
            // A snapshot's id is for the controllers of KRaft.
            _ => return Ok(false),
        }
        r.skip_tags()?;
        Ok(true)
    })?;
    Ok(FetchResponsePartition {
        partition,
        code,
        high_watermark,
        last_stable_offset,
        log_start,
        diverging,
        current_leader,
        aborted: aborted.unwrap_or_default(),
        preferred_replica,
        records,
    })
}

const TAG_ENDPOINTS: u32 = 0;
const TAG_DIVERGING: u32 = 0;
const TAG_LEADER: u32 = 1;
/// Index, code, two offsets, and lengths of one byte for two fields.
const PARTITION_BYTES_MIN: usize = 24;
