//! The parts of an archive that become users: HAR 1.2, as far as tools agree on it.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct HarArchive {
    pub(super) log: HarLog,
}

#[derive(Debug, Deserialize)]
pub(super) struct HarLog {
    #[serde(default, deserialize_with = "nullable")]
    pub(super) pages: Vec<HarPage>,
    /// The recorder did not verify the certificates of servers.
    #[serde(default, rename = "_insecure")]
    pub(super) insecure: bool,
    pub(super) entries: Vec<HarEntry>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HarPage {
    pub(super) id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) title: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HarEntry {
    pub(super) pageref: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) started_date_time: String,
    /// Milliseconds; browsers write -1 for unknown.
    pub(super) time: Option<f64>,
    pub(super) request: HarRequest,
    /// Some tools omit it: they only record what to request.
    pub(super) response: Option<HarResponse>,
    #[serde(rename = "_resourceType")]
    pub(super) resource_type: Option<String>,
    #[serde(rename = "_fromCache")]
    pub(super) from_cache: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HarRequest {
    pub(super) method: String,
    pub(super) url: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) headers: Vec<HarPair>,
    pub(super) post_data: Option<PostData>,
    /// -1 for unknown.
    #[serde(default, deserialize_with = "nullable")]
    pub(super) body_size: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct HarPair {
    pub(super) name: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) value: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PostData {
    #[serde(default, deserialize_with = "nullable")]
    pub(super) mime_type: String,
    pub(super) text: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) params: Vec<Param>,
    #[serde(alias = "_encoding")]
    pub(super) encoding: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Param {
    pub(super) name: String,
    pub(super) value: Option<String>,
    pub(super) file_name: Option<String>,
    pub(super) content_type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HarResponse {
    /// Some tools write a negative number for a missing answer.
    #[serde(default, deserialize_with = "nullable")]
    pub(super) status: i32,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) headers: Vec<HarPair>,
    #[serde(rename = "redirectURL")]
    pub(super) redirect_url: Option<String>,
    pub(super) content: Option<HarContent>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HarContent {
    #[serde(default, deserialize_with = "nullable")]
    pub(super) mime_type: String,
    /// Already decompressed.
    pub(super) text: Option<String>,
    pub(super) encoding: Option<String>,
}

/// Tools write null as well as nothing for unknown values.
fn nullable<'de, T: Default + Deserialize<'de>, D: serde::Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl HarEntry {
    /// The status of its answer, if it is known.
    pub(super) fn status(&self) -> Option<i32> {
        self.response.as_ref().map(|response| response.status)
    }

    /// The values of a header of its answer.
    pub(super) fn answer_header(&self, name: &str) -> impl Iterator<Item = &str> {
        let headers = self.response.iter().flat_map(|response| &response.headers);
        headers.filter(move |pair| pair.name.eq_ignore_ascii_case(name)).map(|pair| pair.value.as_str())
    }
}
