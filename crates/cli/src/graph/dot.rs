//! Text for graphviz.

use std::fmt::Write as _;

use scoutline_abi::api::Graph;

use super::{kinds, label, links};

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

pub(super) fn draw(graph: &Graph) -> String {
    let mut text =
        String::from("digraph scoutline {\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];\n");
    text.push_str("  subgraph cluster_modules {\n    label=\"modules\";\n");
    for module in &graph.modules {
        let _ = writeln!(text, "    {};", quoted(module));
    }
    for (upper, upper_service, lower, lower_service) in links(graph) {
        let (upper, lower) = (quoted(upper), quoted(lower));
        let (tail, head) = (quoted(upper_service), quoted(lower_service));
        let _ = writeln!(
            text,
            "    {upper} -> {lower} [dir=both, taillabel={tail}, headlabel={head}, fontsize=9];"
        );
    }
    text.push_str("  }\n");
    for (index, (kind, paths)) in kinds(graph).iter().enumerate() {
        let _ =
            writeln!(text, "  subgraph cluster_path{index} {{\n    label={};", quoted(&label(kind, paths)));
        for (stage, name) in kind.stages.iter().enumerate() {
            let _ = writeln!(text, "    p{index}s{stage} [label={}, style=rounded];", quoted(name));
        }
        // Device side first in the list, at the bottom of the picture.
        for stage in 1..kind.stages.len() {
            let _ = writeln!(text, "    p{index}s{stage} -> p{index}s{} [dir=both];", stage - 1);
        }
        text.push_str("  }\n");
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn links_and_paths_are_drawn_and_alike_paths_are_one() {
        let text = super::draw(&super::super::sample());
        assert!(text.contains("\"TCP\" -> \"IP4\""), "{text}");
        assert!(text.contains("label=\"a<b (2): 2 paths\""), "{text}");
        assert_eq!(text.matches("cluster_path").count(), 1);
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
