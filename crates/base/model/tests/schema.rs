//! The schema in the tree, for readers of our documents that do not use our types.

use std::{fs, path::Path};

#[test]
fn the_schema_in_the_tree_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/fathom.run-1.json");
    let kept: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let made = serde_json::to_value(schemars::schema_for!(fathom_model::Run)).unwrap();
    assert_eq!(kept, made, "it is made anew by `make schema`");
}
