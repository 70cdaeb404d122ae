//! The mistakes of `faults.txt` can still be planted in the library as it stands.

use laneway_protocol_tests::faults;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn every_fault_fits_its_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let all = faults::all();
    assert!(all.len() >= 25, "{}", all.len());
    let names: BTreeSet<_> = all.iter().map(|f| &f.name).collect();
    assert_eq!(names.len(), all.len(), "one name each");
    for fault in &all {
        let text = fs::read_to_string(root.join(&fault.file)).unwrap();
        let planted = fault.plant(&text).unwrap();
        assert!(planted.contains(&fault.name) && planted.contains("crate::planted::is"));
    }
}
