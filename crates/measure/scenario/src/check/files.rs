//! Checks the files that a scenario names: whether they exist, and which columns data sets have.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read as _,
    path::Path,
};

use super::{
    super::{
        ast::{BodyContent, DataSetDef, FormFieldValue, Name, Scenario},
        diagnostic::Diagnostic,
        execution::{DataLayout, DataRows, DataRowsError},
    },
    Diagnostics, steps,
};

/// Larger files are not read completely during the check, because that takes seconds.
const WHOLE_MAX: u64 = 64 << 20;

/// The first two rows of a data file fit in this, or it is not a data file.
const FIRST_ROWS_MAX: u64 = 1 << 20;

/// The columns of each data set, if they could be read.
pub(super) type Columns = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check(scenario: &Scenario, folder: &Path, found: &mut Diagnostics) -> Columns {
    for step in steps(scenario) {
        match step.body.as_ref().map(|body| &body.content) {
            Some(BodyContent::File(file)) => is_there(file, folder, found),
            Some(BodyContent::Multipart(fields)) => {
                for field in fields {
                    if let FormFieldValue::File { path, .. } = &field.value {
                        is_there(path, folder, found);
                    }
                }
            }
            _ => {}
        }
    }
    let mut columns = Columns::new();
    for set in &scenario.data {
        match columns_of(set, folder) {
            Ok(Some(names)) => {
                columns.insert(set.name.text.clone(), names);
            }
            Ok(None) => {}
            Err(fault) => found.add(*fault),
        }
    }
    columns
}

fn is_there(file: &Name, folder: &Path, found: &mut Diagnostics) {
    match fs::metadata(folder.join(&file.text)) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => found.add(not_a_file(file)),
        Err(error) => found.add(unreadable(file, folder, &error)),
    }
}

/// Reading a device or a pipe would block.
fn not_a_file(file: &Name) -> Diagnostic {
    Diagnostic::error(file.span, format!("`{}` is not a file", file.text))
}

fn unreadable(file: &Name, folder: &Path, error: &std::io::Error) -> Diagnostic {
    let fault = Diagnostic::error(file.span, format!("cannot read `{}`", file.text)).label(error.to_string());
    fault.fix(format!(
        "it is looked for in {}",
        if folder.as_os_str().is_empty() { Path::new(".") } else { folder }.display()
    ))
}

fn columns_of(set: &DataSetDef, folder: &Path) -> Result<Option<BTreeSet<String>>, Box<Diagnostic>> {
    let path = folder.join(&set.file.text);
    let cannot = |error: &std::io::Error| unreadable(&set.file, folder, error).boxed();
    let wrong =
        |why: String| Diagnostic::error(set.file.span, format!("cannot use `{}`", set.file.text)).label(why).boxed();
    let metadata = fs::metadata(&path).map_err(|error| cannot(&error))?;
    if !metadata.is_file() {
        return Err(not_a_file(&set.file).boxed());
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    let invalid = |error: DataRowsError| match error {
        DataRowsError::Form { line, what, .. } => wrong(format!("line {line}: {what}")),
        error => wrong(error.to_string()),
    };
    if DataRows::is_json(&extension) {
        if metadata.len() > WHOLE_MAX {
            return Ok(None);
        }
        let rows = DataRows::read(&path, &DataLayout::of(set)).map_err(invalid)?;
        return Ok(Some(rows.columns().iter().cloned().collect()));
    }
    let separator = set.separator.unwrap_or(if extension == "tsv" { '\t' } else { ',' });
    let separator = u8::try_from(separator).unwrap_or(b',');
    let file = File::open(&path).map_err(|error| cannot(&error))?.take(FIRST_ROWS_MAX);
    let mut reader =
        csv::ReaderBuilder::new().delimiter(separator).has_headers(set.columns.is_empty()).from_reader(file);
    let named: Vec<String> = set.columns.iter().map(|column| column.text.clone()).collect();
    let names = if named.is_empty() {
        reader.headers().map_err(|error| wrong(error.to_string()))?.iter().map(str::to_owned).collect()
    } else {
        named
    };
    let first = reader.records().next().ok_or_else(|| wrong("it has no rows".to_owned()))?;
    let n_values = first.map_err(|error| wrong(error.to_string()))?.len();
    if n_values != names.len() {
        return Err(wrong(format!("{} columns are named, its first row has {n_values} values", names.len())));
    }
    // Duplicate column names in the scenario itself are reported there.
    let is_told = names.iter().collect::<BTreeSet<_>>().len() < set.columns.len();
    if metadata.len() <= WHOLE_MAX && !is_told {
        DataRows::read(&path, &DataLayout::of(set)).map_err(invalid)?;
    }
    Ok(Some(names.into_iter().collect()))
}
