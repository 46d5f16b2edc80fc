//! Groups: lists of hosts, ranges, addresses and other groups, flattened to hosts.

use std::{collections::BTreeMap, net::IpAddr, ops::Range};

use fathom_model::{inventory::expand, reach::is_host_word};

use super::{
    reaches::{HostEntries, HostEntry, beyond_address},
    text::{ALL, GroupText, HostText, InventoryText, SourceText, key},
};
use crate::exit::UserError;

/// A group of the file.
struct WrittenGroup<'a> {
    span: Range<usize>,
    text: &'a GroupText,
}

/// Flattens all groups. An address that is no host becomes one.
pub(super) fn flatten(
    written: &InventoryText,
    entries: &mut HostEntries,
    source: &SourceText<'_>,
) -> Result<BTreeMap<String, Vec<String>>, UserError> {
    let groups: BTreeMap<&str, WrittenGroup<'_>> = written
        .groups
        .iter()
        .map(|(name, text)| (name.get_ref().as_str(), WrittenGroup { span: name.span(), text }))
        .collect();
    let mut flattening = Flattening { groups: &groups, defaults: &written.defaults, entries, source };
    let mut flat = BTreeMap::new();
    for (name, group) in &groups {
        let wrong = |what: String| source.error(&group.span, format!("groups.{}: {what}", key(name)));
        if !is_host_word(name) {
            return Err(wrong(format!("`{}` is not a name", name.escape_debug()))
                .with_line("fix", "use letters, digits, - and _"));
        }
        if flattening.entries.has(name) {
            return Err(wrong(format!("`{name}` is the name of a host too")).with_line("fix", "rename one of them"));
        }
        let mut members = Vec::new();
        flattening.collect(name, &mut Vec::new(), &mut members)?;
        if members.is_empty() {
            let fix = format!("{} = [\"HOST\", …], or leave it out", key(name));
            return Err(wrong("it has no hosts".to_owned()).with_line("fix", fix));
        }
        flat.insert((*name).to_owned(), members);
    }
    let all = entries.names_in_order();
    if let Some(own) = flat.get(ALL).filter(|own| own.len() != all.len()) {
        let (n_all, n_own) = (all.len(), own.len());
        let what = format!("groups.{ALL}: `{ALL}` is the group of all {n_all} hosts, and this one has {n_own}");
        return Err(source.error(&groups[ALL].span, what).with_line("fix", "give the group another name"));
    }
    flat.entry(ALL.to_owned()).or_insert(all);
    Ok(flat)
}

struct Flattening<'a> {
    groups: &'a BTreeMap<&'a str, WrittenGroup<'a>>,
    defaults: &'a HostText,
    entries: &'a mut HostEntries,
    source: &'a SourceText<'a>,
}

impl Flattening<'_> {
    /// Adds the hosts of a group to `members`. `path` has the groups on the way to it.
    fn collect(&mut self, name: &str, path: &mut Vec<String>, members: &mut Vec<String>) -> Result<(), UserError> {
        let group = &self.groups[name];
        let outer = path.first().map_or(name, String::as_str).to_owned();
        let span = self.groups[outer.as_str()].span.clone();
        let wrong = |what: String| self.source.error(&span, format!("groups.{}: {what}", key(&outer)));
        let is_loop = path.iter().any(|one| one == name);
        path.push(name.to_owned());
        if is_loop {
            return Err(wrong(format!("it contains itself: {}", path.join(", ")))
                .with_line("fix", "take one of these groups out of the other"));
        }
        let texts: Vec<String> = group.text.members().iter().filter(|text| !text.trim().is_empty()).cloned().collect();
        for text in &texts {
            let names = expand(text).map_err(|error| wrong(error.to_string()))?;
            for member in names {
                if self.groups.contains_key(member.as_str()) {
                    self.collect(&member, path, members)?;
                    continue;
                }
                if !self.entries.has(&member) {
                    if let Some(what) = beyond_address(text, &member) {
                        return Err(wrong(what));
                    }
                    if member.parse::<IpAddr>().is_err() {
                        return Err(self
                            .source
                            .error(
                                &span,
                                format!("groups.{}: `{member}` is neither a host, a group nor an address", key(&outer)),
                            )
                            .with_line("fix", format!("[hosts.{}] declares it", key(&member))));
                    }
                    self.entries.insert(member.clone(), HostEntry::of_address(&member, self.defaults, span.clone()));
                }
                if !members.contains(&member) {
                    members.push(member);
                }
            }
        }
        path.pop();
        Ok(())
    }
}
