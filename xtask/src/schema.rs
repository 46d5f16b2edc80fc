//! Writes the JSON Schema of `fathom.run/1` from the types of the model.

use std::{fs, path::Path};

use anyhow::Context as _;

/// Writes the schema; never reports faults.
pub(crate) fn write(root: &Path) -> anyhow::Result<Vec<String>> {
    let path = root.join("crates/base/model/schema/fathom.run-1.json");
    fs::create_dir_all(path.parent().expect("the path has a folder"))?;
    let schema = schemars::schema_for!(fathom_model::Run);
    let text = serde_json::to_string_pretty(&schema)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Vec::new())
}
