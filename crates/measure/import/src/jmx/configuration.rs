//! Elements without an action of their own: defaults, headers, variables, data, timers.

#![expect(clippy::unnecessary_wraps, reason = "the rows of a table have one shape")]

use fathom_model::units::Nanos;

use super::{
    super::import_tree::{
        CookieHandling, DataSet, FirstRow, ImportAction, ImportPiece, ImportText, ImportedMeeting, ImportedRowPolicy,
        OnError, ThinkTime,
    },
    element::Element,
    reader::{JmxReader, Throughput},
    scope::{JmxScope, Login, millis},
};

/// What an element adds to its scope, and the actions at the beginning of its controller.
type ActionsResult = Result<Vec<ImportAction>, String>;

pub(super) fn defaults<'a>(_: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    if !element.is_of("HttpDefaultsGui") {
        return Err("these defaults are not for HTTP".to_owned());
    }
    scope.defaults.push(&element.properties);
    Ok(Vec::new())
}

pub(super) fn headers<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    for line in element.properties.members("HeaderManager.headers") {
        let name = line.text("Header.name").unwrap_or_default().trim().to_owned();
        let value = reader.text(line.text("Header.value").unwrap_or_default());
        if name.is_empty() || name.contains("${") {
            reader.remarks.0.push(format!("the header {name}: {value} is left out, for its name is not fixed"));
        } else if ["content-length", "host", "connection"].iter().all(|made| !name.eq_ignore_ascii_case(made)) {
            scope.set_header(name, value);
        } else {
            reader.remarks.0.push(format!("the header {name} is left out: it follows from the URL and the body"));
        }
    }
    Ok(Vec::new())
}

/// The note on cookies for a user who begins again.
pub(super) const KEPT_COOKIES: &str = "cookies are kept from one round to the next, where JMeter begins without any";

pub(super) fn cookies<'a>(reader: &mut JmxReader, element: &'a Element, _: &mut JmxScope<'a>) -> ActionsResult {
    reader.cookies = CookieHandling::Kept;
    if element.is_on("CookieManager.clearEachIteration") {
        reader.remarks.0.push(KEPT_COOKIES.to_owned());
    }
    for cookie in element.properties.members("CookieManager.cookies") {
        reader.remarks.0.push(format!("the cookie {} that users begin with is left out", cookie.name));
    }
    Ok(Vec::new())
}

pub(super) fn logins<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    for line in element.properties.members("AuthManager.auth_list") {
        match Login::of(line, &mut |source| reader.text(source)) {
            Ok(login) => scope.logins.push(login),
            Err(what) => reader.remarks.0.push(format!("{what}: this login is left out")),
        }
    }
    Ok(Vec::new())
}

pub(super) fn names<'a>(_: &mut JmxReader, element: &'a Element, _: &mut JmxScope<'a>) -> ActionsResult {
    if element.properties.members("DNSCacheManager.hosts").is_empty() {
        return Ok(Vec::new());
    }
    Err("the addresses of hosts are left out: the run has an option for them".to_owned())
}

/// Variables of a plan are global: they were read before everything else.
pub(super) fn variables<'a>(_: &mut JmxReader, _: &'a Element, _: &mut JmxScope<'a>) -> ActionsResult {
    Ok(Vec::new())
}

pub(super) fn data<'a>(reader: &mut JmxReader, element: &'a Element, _: &mut JmxScope<'a>) -> ActionsResult {
    let file = reader.text(element.text("filename").unwrap_or_default());
    let file = reader.tree.fixed(&file).filter(|file| !file.is_empty()).ok_or("the name of its file is not fixed")?;
    let columns = element
        .text("variableNames")
        .map(|names| names.split(',').map(|name| name.trim().trim_matches('"').to_owned()).collect::<Vec<_>>());
    let mut delimiter = match element.text("delimiter").unwrap_or(",") {
        "\\t" => '\t',
        told => told.chars().next().unwrap_or(','),
    };
    let is_sign = delimiter == '\t' || (delimiter.is_ascii_punctuation() && !"\"#$".contains(delimiter));
    if !is_sign {
        reader.remarks.0.push("its delimiter is not a single character, so a comma is used".to_owned());
        delimiter = ',';
    }
    // `recycle` is on by default, `stopThread` off. With neither, JMeter fills in a text that marks the end of the file.
    let policy = match (element.text("recycle") != Some("false"), element.is_on("stopThread")) {
        (true, _) => ImportedRowPolicy::Sequential,
        (false, stops) => {
            if !stops {
                reader.remarks.0.push("users leave after the last row, where JMeter fills in <EOF>".to_owned());
            }
            ImportedRowPolicy::Unique
        }
    };
    match element.text("shareMode").unwrap_or("shareMode.all") {
        "shareMode.all" | "All threads" => {}
        "shareMode.group" | "Current thread group" if reader.n_groups == 1 => {}
        mode => reader.remarks.0.push(format!("all users share its rows, where JMeter has {mode}")),
    }
    let first_row = if element.is_on("ignoreFirstLine") { FirstRow::Names } else { FirstRow::Row };
    if let (FirstRow::Names, Some(columns)) = (first_row, &columns) {
        reader.remarks.0.push(format!("the first row of {file} must read {}", columns.join(&delimiter.to_string())));
    }
    let name = element.name.clone();
    reader.tree.data.push(DataSet { name, file, columns, first_row, delimiter, policy });
    Ok(Vec::new())
}

pub(super) fn counter<'a>(reader: &mut JmxReader, element: &'a Element, _: &mut JmxScope<'a>) -> ActionsResult {
    let name = element.text("CounterConfig.name").ok_or("it has no variable")?.to_owned();
    let start = reader.number(element.text("CounterConfig.start").unwrap_or("0")).ok_or("its start is not a number")?;
    if element.text("CounterConfig.incr").is_some_and(|step| step != "1") {
        return Err("it does not count by ones".to_owned());
    }
    let width = width(element.text("CounterConfig.format").unwrap_or_default())?;
    if let Some(end) = element.text("CounterConfig.end").filter(|end| *end != "9223372036854775807") {
        reader.remarks.0.push(format!("it continues after {end}; JMeter starts over"));
    }
    if !element.is_on("CounterConfig.per_user") {
        return Ok(vec![ImportAction::Set { name, to: ImportText(vec![ImportPiece::Counter(start, width)]) }]);
    }
    if start != 1 || width > 0 {
        return Err("a counter of each user's own begins with 1 and has no format here".to_owned());
    }
    Ok(vec![ImportAction::Set { name, to: ImportText(vec![ImportPiece::Round]) }])
}

/// `000` means at least three digits.
fn width(format: &str) -> Result<u8, String> {
    let zeros = format.bytes().filter(|byte| *byte == b'0').count();
    match u8::try_from(zeros) {
        Ok(width) if zeros == format.len() => Ok(width),
        _ => Err(format!("its format is {format}")),
    }
}

pub(super) fn random<'a>(reader: &mut JmxReader, element: &'a Element, _: &mut JmxScope<'a>) -> ActionsResult {
    let name = element.text("variableName").ok_or("it has no variable")?.to_owned();
    let mut number = |property| reader.number(element.text(property).unwrap_or_default());
    let (from, to) = (number("minimumValue"), number("maximumValue"));
    let (from, to) = from.zip(to).filter(|(from, to)| from <= to).ok_or("its bounds are not numbers of at least 0")?;
    let width = width(element.text("outputFormat").unwrap_or_default())?;
    Ok(vec![ImportAction::Set { name, to: ImportText(vec![ImportPiece::Random(from, to, width)]) }])
}

/// The times of a timer: the constant part, and the random part.
fn times(reader: &mut JmxReader, element: &Element) -> Result<(Nanos, Nanos), String> {
    let mut time = |property| {
        let text = reader.text(element.text(property).unwrap_or("0"));
        let text = reader.tree.fixed(&text).and_then(|text| millis(&text));
        text.ok_or_else(|| format!("its {} is not a time", property.trim_start_matches("ConstantTimer.")))
    };
    Ok((time("ConstantTimer.delay")?, time("RandomTimer.range")?))
}

pub(super) fn constant<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    let (delay, _) = times(reader, element)?;
    scope.thinks.push(ThinkTime::Fixed(delay));
    Ok(Vec::new())
}

pub(super) fn uniform<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    let (delay, range) = times(reader, element)?;
    scope.thinks.push(ThinkTime::Uniform(delay..=Nanos(delay.0.saturating_add(range.0))));
    Ok(Vec::new())
}

pub(super) fn gaussian<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    let (mean, deviation) = times(reader, element)?;
    scope.thinks.push(ThinkTime::Normal { mean, deviation });
    Ok(Vec::new())
}

/// A Poisson-distributed number of milliseconds, which for more than a few is nearly normal.
pub(super) fn poisson<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    let (delay, lambda) = times(reader, element)?;
    let deviation = Nanos::from_secs_f64((lambda.as_secs_f64() * 1e3).sqrt() / 1e3);
    scope.thinks.push(ThinkTime::Normal { mean: Nanos(delay.0.saturating_add(lambda.0)), deviation });
    Ok(Vec::new())
}

pub(super) fn constant_throughput<'a>(
    reader: &mut JmxReader,
    element: &'a Element,
    _: &mut JmxScope<'a>,
) -> ActionsResult {
    let text = reader.text(element.text("throughput").unwrap_or_default());
    let per_minute =
        reader.tree.fixed(&text).and_then(|text| text.trim().parse::<f64>().ok()).filter(|rate| *rate > 0.0);
    let per_minute = per_minute.ok_or("its rate is not a number")?;
    let is_shared = element.text("calcMode").unwrap_or("0") != "0";
    reader.throttle(Throughput { per_minute, is_shared })
}

pub(super) fn precise_throughput<'a>(
    reader: &mut JmxReader,
    element: &'a Element,
    _: &mut JmxScope<'a>,
) -> ActionsResult {
    let mut number = |property| {
        let text = reader.text(element.text(property).unwrap_or_default());
        reader.tree.fixed(&text).and_then(|text| text.trim().parse::<f64>().ok()).filter(|number| *number > 0.0)
    };
    let rate = number("throughput").zip(number("throughputPeriod")).ok_or("its rate is not a number")?;
    let done = reader.throttle(Throughput { per_minute: rate.0 * 60.0 / rate.1, is_shared: true })?;
    reader.remarks.0.push("its requests come evenly and not by chance".to_owned());
    Ok(done)
}

pub(super) fn meeting<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    let mut number = |property| reader.number(element.text(property).unwrap_or("0"));
    let n_users = number("groupSize").ok_or("the size of its group is not a number")?;
    let millis = number("timeoutInMilliseconds").ok_or("its time is not a number")?;
    let at_most = (millis > 0).then(|| Nanos::from_millis(millis));
    scope.meetings.push(ImportedMeeting { n_users: (n_users > 0).then_some(n_users), at_most });
    Ok(Vec::new())
}

pub(super) fn on_error<'a>(reader: &mut JmxReader, element: &'a Element, scope: &mut JmxScope<'a>) -> ActionsResult {
    scope.on_error = Some(match element.text("OnError.action").unwrap_or("0") {
        "0" => OnError::Continue,
        "1" => OnError::Leave,
        "4" => OnError::NextRound,
        "2" | "3" => {
            reader.remarks.0.push("after an error the user leaves, where JMeter ends the test".to_owned());
            OnError::Leave
        }
        other => return Err(format!("its action {other} ends an inner loop")),
    });
    Ok(Vec::new())
}
