//! Draws a graph in the language of Graphviz.

use std::fmt::Write as _;

use super::plan::{Graph, NodeWork, Plan};

impl Graph {
    /// Returns a drawing of the graph in Graphviz's language, for `dot -Tsvg`. Each sub-graph is
    /// drawn in a box.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph {\n    rankdir=LR;\n");
        draw(&self.0, "n", 1, &mut dot);
        dot.push_str("}\n");
        dot
    }
}

fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('\n', "\\n"))
}

fn draw(plan: &Plan, prefix: &str, level: usize, dot: &mut String) {
    let indent = "    ".repeat(level);
    for (node, index) in plan.nodes.iter().zip(0..) {
        let shape = match &node.work {
            NodeWork::Context(_) | NodeWork::Recv(_) | NodeWork::Wait(_) => "box",
            NodeWork::User(_) | NodeWork::With(_) => "ellipse",
            NodeWork::Async(_) => "hexagon",
            NodeWork::Sub(_) => "folder",
        };
        let label = quoted(&plan.label(index));
        let _ = writeln!(
            dot,
            "{indent}{prefix}{index} [label={label}, shape={shape}];"
        );
        if let NodeWork::Sub(graph) = &node.work {
            let inner = format!("{prefix}{index}_");
            let _ = writeln!(dot, "{indent}subgraph cluster_{prefix}{index} {{");
            let _ = writeln!(dot, "{indent}    label={label};");
            draw(&graph.0, &inner, level + 1, dot);
            let _ = writeln!(dot, "{indent}}}");
            for root in &graph.0.roots {
                let _ = writeln!(
                    dot,
                    "{indent}{prefix}{index} -> {inner}{root} [style=dashed];"
                );
            }
        }
    }
    for (_, index) in plan.nodes.iter().zip(0_u32..) {
        for next in plan.successors(index) {
            let _ = writeln!(dot, "{indent}{prefix}{index} -> {prefix}{next};");
        }
    }
}
