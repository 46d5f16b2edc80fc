//! Which requests are for what a page only displays.

use super::{archive::HarEntry, url::without_fragment};

/// The browser's names for resources that a page only displays.
const ASSET_TYPES: &[&str] = &["image", "font", "stylesheet", "script", "media", "manifest", "texttrack"];
/// The same by the media type of the answer.
const ASSET_MEDIA: &[&str] =
    &["image/", "font/", "audio/", "video/", "text/css", "text/javascript", "application/javascript"];
/// The same by the end of the path, for recordings without other information.
const ASSET_ENDINGS: &[&str] = &[
    "css", "js", "mjs", "map", "png", "jpg", "jpeg", "gif", "svg", "webp", "avif", "ico", "woff", "woff2", "ttf",
    "otf", "mp4", "webm", "mp3",
];

pub(super) fn is_asset(entry: &HarEntry) -> bool {
    if let Some(kind) = entry.resource_type.as_deref() {
        return ASSET_TYPES.contains(&kind);
    }
    let content = entry.response.as_ref().and_then(|response| response.content.as_ref());
    let media = content.map_or("", |content| content.mime_type.as_str());
    let path = without_fragment(&entry.request.url).split('?').next().unwrap_or_default();
    let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending);
    ASSET_MEDIA.iter().any(|asset| media.starts_with(asset))
        || ending.is_some_and(|ending| ASSET_ENDINGS.iter().any(|asset| ending.eq_ignore_ascii_case(asset)))
}
