//! Lines that are JSON objects, as nginx, Envoy, Caddy, Traefik and others write them.

use std::{borrow::Cow, collections::HashMap, fmt, sync::LazyLock};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    values::{Field, LoggedValues},
    variables::is_of_request,
};

/// Names of members in small letters without other characters, with what they say. Of those with the same meaning, the first is the
/// closest to what was sent.
const MEMBERS: &[(&str, Field)] = &[
    ("request", Field::RequestLine),
    ("requestline", Field::RequestLine),
    ("requestmethod", Field::Method),
    ("method", Field::Method),
    ("httpmethod", Field::Method),
    ("verb", Field::Method),
    ("requesturi", Field::Target),
    ("requesttarget", Field::Target),
    ("requesturl", Field::Target),
    ("requestpath", Field::Target),
    ("target", Field::Target),
    ("path", Field::Target),
    ("uri", Field::Target),
    ("url", Field::Target),
    ("args", Field::Query),
    ("querystring", Field::Query),
    ("query", Field::Query),
    ("authority", Field::Host),
    ("httphost", Field::Host),
    ("requestaddr", Field::Host),
    ("requesthost", Field::Host),
    ("host", Field::Host),
    ("vhost", Field::Host),
    ("servername", Field::Host),
    ("downstreamstatus", Field::Status),
    ("status", Field::Status),
    ("responsecode", Field::Status),
    ("statuscode", Field::Status),
    ("responsestatus", Field::Status),
    ("bodybytessent", Field::AnswerBytes),
    ("downstreamcontentsize", Field::AnswerBytes),
    ("bytessent", Field::AnswerBytes),
    ("responsesize", Field::AnswerBytes),
    ("size", Field::AnswerBytes),
    ("bytes", Field::AnswerBytes),
    ("startutc", Field::Begin),
    ("starttime", Field::Begin),
    ("msec", Field::End),
    ("ts", Field::End),
    ("timeiso8601", Field::End),
    ("timelocal", Field::End),
    ("timestamp", Field::Time),
    ("time", Field::Time),
    ("datetime", Field::Time),
    ("date", Field::Time),
    ("durationms", Field::Millis),
    ("latencyms", Field::Millis),
    ("requesttimems", Field::Millis),
    ("durationus", Field::Micros),
    ("requesttimeus", Field::Micros),
    ("durationns", Field::Nanos),
    ("requesttime", Field::Duration),
    ("duration", Field::Duration),
    ("latency", Field::Duration),
    ("elapsed", Field::Duration),
    ("clientip", Field::Client),
    ("remoteaddr", Field::Client),
    ("remoteip", Field::Client),
    ("clienthost", Field::Client),
    ("clientaddress", Field::Client),
    ("downstreamremoteaddress", Field::Client),
    ("client", Field::Client),
    ("httpxforwardedfor", Field::Forwarded),
    ("xforwardedfor", Field::Forwarded),
    ("connection", Field::Connection),
    ("connectionid", Field::Connection),
    ("clientport", Field::Connection),
    ("remoteport", Field::Connection),
    ("requestbody", Field::Body),
    ("requestcontentsize", Field::BodyBytes),
    ("requestbodybytes", Field::BodyBytes),
    ("bytesreceived", Field::BodyBytes),
    ("bytesread", Field::BodyBytes),
    // The Elastic Common Schema, whose objects may stand in each other or have names with points.
    ("httprequestmethod", Field::Method),
    ("urloriginal", Field::Target),
    ("urlpath", Field::Target),
    ("urlquery", Field::Query),
    ("urldomain", Field::Host),
    ("httpresponsestatuscode", Field::Status),
    ("httpresponsebodybytes", Field::AnswerBytes),
    ("eventstart", Field::Begin),
    ("eventend", Field::End),
    ("eventduration", Field::Nanos),
    ("sourceip", Field::Client),
    ("sourceaddress", Field::Client),
    ("sourceport", Field::Connection),
    ("httprequestbodycontent", Field::Body),
    ("httprequestbodybytes", Field::BodyBytes),
];

/// Objects of the Elastic Common Schema whose members are known.
const GROUPS: [&str; 10] = [
    "http",
    "httprequest",
    "httprequestbody",
    "httpresponse",
    "httpresponsebody",
    "url",
    "event",
    "source",
    "client",
    "useragent",
];

/// Members that are fields of the head of the request.
const HEADERS: &[(&str, &str)] = &[
    ("httpuseragent", "User-Agent"),
    ("useragent", "User-Agent"),
    ("httpreferer", "Referer"),
    ("httpreferrer", "Referer"),
    ("referer", "Referer"),
    ("referrer", "Referer"),
    ("httpcookie", "Cookie"),
    ("httpaccept", "Accept"),
    ("httpacceptlanguage", "Accept-Language"),
    ("httpacceptencoding", "Accept-Encoding"),
    ("httpcontenttype", "Content-Type"),
    ("httpauthorization", "Authorization"),
    ("useragentoriginal", "User-Agent"),
    ("httprequestreferrer", "Referer"),
];

/// The longest name of a member that is known.
const NAME_MAX: usize = 32;

static FIELDS: LazyLock<HashMap<&str, (Field, u8)>> =
    LazyLock::new(|| (0..).zip(MEMBERS).map(|(rank, (name, field))| (*name, (*field, rank))).collect());

/// What a member is for.
#[derive(Debug, Clone)]
enum Member<'a> {
    Field(Field, u8),
    Header(Cow<'a, str>),
    /// An object with fields of the head of the request.
    Headers,
    Other,
}

/// Returns the values of a line, or `None` if it is no JSON object.
pub(super) fn read(line: &str) -> Option<LoggedValues<'_>> {
    let mut values = LoggedValues::default();
    let mut json = serde_json::Deserializer::from_str(line);
    let members = Members { values: &mut values, of: Within::Line };
    json.deserialize_map(members).ok()?;
    json.end().ok()?;
    Some(values)
}

/// The object that members are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    /// The line, or a request in it.
    Line,
    /// The fields of a head.
    Headers,
    /// An object with this name.
    Group(&'static str),
}

/// The members of an object.
struct Members<'v, 'a> {
    values: &'v mut LoggedValues<'a>,
    of: Within,
}

impl<'a> Visitor<'a> for Members<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(name) = map.next_key_seed(Name)? {
            let (member, group) = match self.of {
                Within::Headers => (header(name), None),
                Within::Line => member("", &name),
                Within::Group(group) => member(group, &name),
            };
            if matches!(member, Member::Other) && group.is_none() {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(MemberValue { values: self.values, member, group })?;
            }
        }
        Ok(())
    }
}

/// Returns what a member of a group is for, and the group that it is if it is an object.
fn member<'a>(group: &str, name: &str) -> (Member<'a>, Option<&'static str>) {
    // Traefik's own names: a duration in nanoseconds, and fields of the head if it is told to keep them.
    if name == "Duration" {
        return (Member::Field(Field::Nanos, 0), None);
    }
    if let Some(field) = name.strip_prefix("request_").filter(|name| name.starts_with(char::is_uppercase)) {
        return (header(Cow::Owned(field.to_owned())), None);
    }
    let mut known = [0; NAME_MAX];
    let mut n = 0;
    for byte in group.bytes().chain(name.bytes()).filter(u8::is_ascii_alphanumeric) {
        let Some(place) = known.get_mut(n) else { return (Member::Other, None) };
        *place = byte.to_ascii_lowercase();
        n += 1;
    }
    let known = std::str::from_utf8(&known[..n]).unwrap_or_default();
    (member_with(known), GROUPS.into_iter().find(|group| *group == known))
}

/// Returns what a member is for, by its name in small letters without other characters.
fn member_with<'a>(known: &str) -> Member<'a> {
    if known == "headers" || known == "requestheaders" {
        return Member::Headers;
    }
    if let Some((field, rank)) = FIELDS.get(known) {
        return Member::Field(*field, *rank);
    }
    HEADERS
        .iter()
        .find(|(name, _)| *name == known)
        .map_or(Member::Other, |(_, header)| Member::Header((*header).into()))
}

fn header(name: Cow<'_, str>) -> Member<'_> {
    if is_of_request(&name) { Member::Header(name) } else { Member::Other }
}

/// The name of a member, without a copy if it has no escape.
struct Name;

impl<'a> DeserializeSeed<'a> for Name {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Cow<'a, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for Name {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'a, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// The value of a member.
struct MemberValue<'v, 'a> {
    values: &'v mut LoggedValues<'a>,
    member: Member<'a>,
    /// What it is if it is an object.
    group: Option<&'static str>,
}

impl<'a> MemberValue<'_, 'a> {
    fn take(self, value: Cow<'a, [u8]>) {
        match self.member {
            Member::Field(field, rank) => self.values.set(field, rank, value),
            Member::Header(name) => {
                if name.eq_ignore_ascii_case("x-forwarded-for") {
                    self.values.set(Field::Forwarded, 0, value.clone());
                }
                self.values.add_header(name, value);
            }
            Member::Headers | Member::Other => {}
        }
    }
}

impl<'a> DeserializeSeed<'a> for MemberValue<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for MemberValue<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<(), E> {
        self.take(Cow::Borrowed(text.as_bytes()));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.take(Cow::Owned(text.as_bytes().to_vec()));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.take(Cow::Owned(number.to_string().into_bytes()));
        Ok(())
    }

    fn visit_i64<E>(self, _number: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        // Zeros at the end are lost on the way; servers write three digits or more.
        let mut text = number.to_string();
        let n_digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
        if n_digits < 3 {
            text = format!("{number:.3}");
        }
        self.take(Cow::Owned(text.into_bytes()));
        Ok(())
    }

    fn visit_bool<E>(self, _truth: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    /// Caddy has a list of values for each field of a head.
    fn visit_seq<S: SeqAccess<'a>>(self, mut list: S) -> Result<(), S::Error> {
        let Self { values, member, group } = self;
        loop {
            let one = MemberValue { values: &mut *values, member: member.clone(), group };
            if list.next_element_seed(one)?.is_none() {
                return Ok(());
            }
        }
    }

    /// Caddy has its request in an object of its own.
    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let of = match (&self.member, self.group) {
            (_, Some(group)) => Some(Within::Group(group)),
            (Member::Headers, _) => Some(Within::Headers),
            (Member::Field(Field::RequestLine, _), _) => Some(Within::Line),
            _ => None,
        };
        if let Some(of) = of {
            return Members { values: self.values, of }.visit_map(map);
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
