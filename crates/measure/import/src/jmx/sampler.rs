//! HTTP requests of a plan.

use fathom_model::units::Nanos;

use super::{
    super::{
        encode,
        import_tree::{
            FormPart, FormPartContent, ImportAction, ImportNote, ImportText, ImportedBody, ImportedRequest,
            RedirectHandling,
        },
    },
    element::{Element, Properties},
    reader::JmxReader,
    scope::JmxScope,
};

/// JMeter's content type of a form.
const FORM: &str = "application/x-www-form-urlencoded; charset=UTF-8";

/// The methods whose parameters go into the URL.
const WITH_QUERY: &[&str] = &["GET", "HEAD", "OPTIONS", "TRACE", "DELETE"];

/// A parameter of a request.
struct Argument {
    name: ImportText,
    value: ImportText,
    encode: bool,
    equals: bool,
}

/// An HTTP request with everything in its scope.
pub(super) fn http(
    reader: &mut JmxReader,
    element: &Element,
    outside: &JmxScope<'_>,
) -> Result<Vec<ImportAction>, String> {
    let (scope, prelude) = reader.apply_configuration(outside, &element.children);
    let own = &element.properties;
    let url = url(reader, own, &scope)?;
    let method = reader.text(scope.property(own, "HTTPSampler.method").unwrap_or("GET")).to_string();
    let mut request = ImportedRequest {
        name: Some(element.name.clone()).filter(|name| !name.is_empty()),
        method,
        url,
        headers: scope.headers.clone(),
        expects: scope.expects.clone(),
        takes: scope.takes.clone(),
        on_error: scope.on_error,
        ..ImportedRequest::default()
    };
    let arguments = arguments(reader, own, &scope);
    content(reader, &mut request, own, arguments);
    let follows = own.is_on("HTTPSampler.follow_redirects") || own.is_on("HTTPSampler.auto_redirects");
    request.redirects = if follows { RedirectHandling::Followed } else { RedirectHandling::Taken };
    let timeout = scope.property(own, "HTTPSampler.response_timeout").map(str::to_owned);
    request.timeout =
        timeout.and_then(|millis| reader.number(&millis)).filter(|millis| *millis > 0).map(Nanos::from_millis);
    if request.header("Authorization").is_none()
        && let Some(header) = reader.tree.fixed(&request.url).and_then(|url| scope.login(&url).cloned())
    {
        request.headers.push(("Authorization".to_owned(), header));
    }
    for (property, what) in [
        ("HTTPSampler.image_parser", "embedded resources of a page are not fetched"),
        ("HTTPSampler.proxyHost", "its proxy is left out: the run has an option for one"),
        ("HTTPSampler.ipSource", "its source address is left out: the run has an option for it"),
    ] {
        if scope.property(own, property).is_some_and(|set| set != "false") {
            reader.remarks.0.push(what.to_owned());
        }
    }
    if own.text("HTTPSampler.use_keepalive") == Some("false") {
        reader.remarks.0.push("its connection is kept all the same".to_owned());
    }
    request.left_out.extend(reader.take_remarks());
    let mut acts = Vec::new();
    for act in prelude {
        match act {
            ImportAction::LeftOut(note) => request.left_out.push(note),
            act => acts.push(act),
        }
    }
    request
        .left_out
        .extend(element.children.iter().filter_map(|child| reader.unknown(child)).collect::<Vec<ImportNote>>());
    acts.extend(scope.meetings.iter().cloned().map(ImportAction::Meet));
    acts.extend(scope.thinks.iter().cloned().map(ImportAction::Think));
    acts.push(ImportAction::Request(Box::new(request)));
    Ok(acts)
}

/// Scheme, host, port and path; the query of the path stays unchanged.
fn url(reader: &mut JmxReader, own: &Properties, scope: &JmxScope<'_>) -> Result<ImportText, String> {
    let path = scope.property(own, "HTTPSampler.path").unwrap_or_default().trim();
    if path.starts_with("http://") || path.starts_with("https://") {
        return Ok(reader.text(path));
    }
    let domain = scope.property(own, "HTTPSampler.domain").ok_or("it has no server")?.trim();
    let scheme = scope.property(own, "HTTPSampler.protocol").unwrap_or("http").trim();
    let port = scope.property(own, "HTTPSampler.port").unwrap_or_default().trim();
    let mut url = reader.text(scheme).map_literals(str::to_lowercase);
    let default_port = match url.as_literal() {
        Some("http") => "80",
        Some("https") => "443",
        _ => "",
    };
    url.push_str("://");
    url.append(reader.text(domain));
    let port = reader.text(port);
    if !port.is_empty() && port.as_literal() != Some(default_port) && port.as_literal() != Some("0") {
        url.push_str(":");
        url.append(port);
    }
    if !path.starts_with('/') {
        url.push_str("/");
    }
    url.append(reader.text(path).map_literals(|literal| literal.replace(' ', "%20")));
    Ok(url)
}

/// Its own parameters, then those of the defaults.
fn arguments(reader: &mut JmxReader, own: &Properties, scope: &JmxScope<'_>) -> Vec<Argument> {
    let is_raw = own.is_on("HTTPSampler.postBodyRaw");
    let of_defaults = scope.defaults.iter().rev().filter(|_| !is_raw);
    let all = std::iter::once(own).chain(of_defaults.copied());
    let lines: Vec<&Properties> =
        all.flat_map(|place| place.members_in("HTTPsampler.Arguments", "Arguments.arguments")).collect();
    let read = |line: &Properties| Argument {
        name: reader.text(line.text("Argument.name").unwrap_or_default()),
        value: reader.text(line.text("Argument.value").unwrap_or_default()),
        encode: line.is_on("HTTPArgument.always_encode"),
        equals: line.text("HTTPArgument.use_equals") != Some("false"),
    };
    lines.into_iter().map(read).collect()
}

/// Sets the body, or the query.
fn content(reader: &mut JmxReader, request: &mut ImportedRequest, own: &Properties, arguments: Vec<Argument>) {
    let files = own.members_in("HTTPsampler.Files", "HTTPFileArgs.files");
    let has_no_names = !arguments.is_empty() && arguments.iter().all(|argument| argument.name.is_empty());
    let is_raw = own.is_on("HTTPSampler.postBodyRaw") || (has_no_names && files.is_empty());
    let is_multipart =
        own.is_on("HTTPSampler.DO_MULTIPART_POST") || files.iter().any(|file| file.text("File.paramname").is_some());
    match files {
        _ if is_raw => raw_body(request, arguments),
        _ if WITH_QUERY.contains(&request.method.as_str()) => query(request, arguments),
        _ if is_multipart => request.body = multipart(reader, arguments, files),
        [file] => file_body(reader, request, file),
        _ => form(request, arguments),
    }
}

fn raw_body(request: &mut ImportedRequest, arguments: Vec<Argument>) {
    let mut body = ImportText::default();
    // JMeter keeps the line ends of the machine on which the plan was written, as they are in the file.
    for argument in arguments {
        body.append(argument.value);
    }
    if !body.is_empty() {
        request.body = ImportedBody::Text(body);
        set_type(request, "text/plain; charset=UTF-8");
    }
}

fn query(request: &mut ImportedRequest, arguments: Vec<Argument>) {
    if let Some(query) = joined(arguments) {
        let has_query = encode::split_once(&request.url, '?').is_some();
        request.url.push_str(if has_query { "&" } else { "?" });
        request.url.append(query.clone());
        // JMeter then sends them twice.
        if request.method == "DELETE" {
            request.body = ImportedBody::Text(query);
        }
    }
    if request.method == "DELETE" {
        set_type(request, FORM);
    }
}

fn multipart(reader: &mut JmxReader, arguments: Vec<Argument>, files: &[Properties]) -> ImportedBody {
    let field = |Argument { name, value, .. }| FormPart {
        name,
        content: FormPartContent::Text(value),
        media_type: None,
        file_name: None,
    };
    let mut parts: Vec<FormPart> = arguments.into_iter().map(field).collect();
    for file in files {
        let path = reader.text(file.text("File.path").unwrap_or_default());
        parts.push(FormPart {
            name: reader.text(file.text("File.paramname").unwrap_or_default()),
            content: FormPartContent::File(path),
            media_type: file.text("File.mimetype").map(str::to_owned),
            file_name: None,
        });
    }
    ImportedBody::Multipart(parts)
}

fn file_body(reader: &mut JmxReader, request: &mut ImportedRequest, file: &Properties) {
    request.body = ImportedBody::File(reader.text(file.text("File.path").unwrap_or_default()));
    if let Some(media) = file.text("File.mimetype") {
        set_type(request, media);
    }
}

fn form(request: &mut ImportedRequest, arguments: Vec<Argument>) {
    // A parameter marked as encoded is decoded first, and then encoded with the rest.
    let named = arguments.into_iter().filter(|argument| !argument.name.is_empty());
    let field = |Argument { name, value, encode, .. }| {
        if encode { (name, value) } else { (encode::unform(name), encode::unform(value)) }
    };
    let fields: Vec<_> = named.map(field).collect();
    if !fields.is_empty() {
        request.body = ImportedBody::Form(fields);
    }
    // Even without any field.
    set_type(request, FORM);
}

/// Sets the content type of a body, unless the plan does.
fn set_type(request: &mut ImportedRequest, media: &str) {
    if request.header("Content-Type").is_none() {
        request.headers.push(("Content-Type".to_owned(), ImportText::literal(media)));
    }
}

/// `a=1&b=2`, encoded where JMeter encodes.
fn joined(arguments: Vec<Argument>) -> Option<ImportText> {
    let each = arguments.into_iter().filter(|argument| !argument.name.is_empty()).map(|argument| {
        let encoded = |text: ImportText| if argument.encode { encode::form(text) } else { text };
        let (mut all, value) = (encoded(argument.name), encoded(argument.value));
        if argument.equals || !value.is_empty() {
            all.push_str("=");
        }
        all.append(value);
        all
    });
    each.reduce(|mut all, next| {
        all.push_str("&");
        all.append(next);
        all
    })
}
