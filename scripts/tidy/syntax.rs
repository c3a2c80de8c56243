//! What the rules see of a Rust file: a walk through its syntax that knows what is there for tests only.

use proc_macro2::TokenStream;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A Rust file of the tree.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) syntax: syn::File,
}

/// Whether a whole file is for tests.
pub(crate) fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().segments.last().is_some_and(|last| last.ident == "test")
            || (attribute.path().is_ident("cfg") && tokens_of(attribute).contains("test"))
    })
}

fn tokens_of(attribute: &syn::Attribute) -> String {
    attribute.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default()
}

fn lines_of(spanned: &impl Spanned) -> usize {
    let span = spanned.span();
    span.end().line - span.start().line + 1
}

/// What a file holds; what is there for tests only is left out where a rule does not bind tests.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) functions: Vec<(String, usize)>,
    pub(crate) test_lines: usize,
    pub(crate) paths: Vec<(usize, Vec<String>)>,
    pub(crate) key_switches: Vec<usize>,
    pub(crate) unsafe_lines: Vec<usize>,
    pub(crate) unbiased_selects: Vec<usize>,
    pub(crate) ignored_tests: Vec<usize>,
    pub(crate) modules: Vec<String>,
    in_test: usize,
}

impl Found {
    pub(crate) fn in_file(source: &Source) -> Found {
        let mut found = Found { in_test: usize::from(is_test_file(&source.path)), ..Found::default() };
        found.visit_file(&source.syntax);
        found
    }

    fn function(&mut self, name: &syn::Ident, attributes: &[syn::Attribute], lines: usize) {
        if self.in_test == 0 && !is_test_only(attributes) {
            self.functions.push((name.to_string(), lines));
        }
    }

    fn tokens(&mut self, tokens: &TokenStream, line: usize) {
        let text = tokens.to_string();
        if self.in_test == 0 && text.contains("ApiKey ::") {
            self.key_switches.push(line);
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &[],
        };
        if !is_test_only(attributes) {
            return visit::visit_item(self, item);
        }
        if self.in_test == 0 {
            self.test_lines += lines_of(item);
        }
        self.in_test += 1;
        visit::visit_item(self, item);
        self.in_test -= 1;
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.modules.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig.ident, &item.attrs, lines_of(&item.sig) + lines_of(&item.block) - 1);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig.ident, &item.attrs, lines_of(&item.sig) + lines_of(&item.block) - 1);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.unsafe_lines.extend(signature.unsafety.map(|token| token.span().start().line));
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.unsafe_lines.extend(item.unsafety.map(|token| token.span().start().line));
        visit::visit_item_impl(self, item);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.unsafe_lines.push(block.unsafe_token.span().start().line);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let is_ignore = attribute.path().is_ident("ignore")
            || (attribute.path().is_ident("cfg_attr") && tokens_of(attribute).contains("ignore"));
        if is_ignore {
            self.ignored_tests.push(attribute.span().start().line);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if self.in_test == 0 {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string());
            self.paths.push((path.span().start().line, segments.collect()));
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if self.in_test == 0 {
            let mut flat = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut flat);
            let line = item.span().start().line;
            self.paths.extend(flat.into_iter().map(|path| (line, path)));
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let mut names = PatternPaths::default();
        names.visit_pat(&arm.pat);
        if self.in_test == 0 && names.0.iter().any(|name| name == "ApiKey") {
            self.key_switches.push(arm.span().start().line);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if matches!(binary.op, syn::BinOp::Eq(_) | syn::BinOp::Ne(_)) {
            let mut names = PatternPaths::default();
            names.visit_expr(&binary.left);
            names.visit_expr(&binary.right);
            if self.in_test == 0 && names.0.iter().any(|name| name == "ApiKey") {
                self.key_switches.push(binary.span().start().line);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let line = call.span().start().line;
        match call.path.segments.last().map(|last| last.ident.to_string()).as_deref() {
            Some("select") if !call.tokens.to_string().starts_with("biased") => {
                self.unbiased_selects.push(line);
            }
            Some("matches") => self.tokens(&call.tokens, line),
            _ => {}
        }
        visit::visit_macro(self, call);
    }
}

/// The first names of all two-part paths below a node: `ApiKey` of `ApiKey::Fetch`.
#[derive(Default)]
struct PatternPaths(Vec<String>);

impl<'ast> Visit<'ast> for PatternPaths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter().rev();
        segments.next();
        self.0.extend(segments.next().map(|segment| segment.ident.to_string()));
    }
}

fn flatten(tree: &syn::UseTree, above: &mut Vec<String>, flat: &mut Vec<Vec<String>>) {
    match tree {
        syn::UseTree::Path(path) => {
            above.push(path.ident.to_string());
            flatten(&path.tree, above, flat);
            above.pop();
        }
        syn::UseTree::Name(name) => flat.push([above.as_slice(), &[name.ident.to_string()]].concat()),
        syn::UseTree::Rename(name) => flat.push([above.as_slice(), &[name.ident.to_string()]].concat()),
        syn::UseTree::Glob(_) => flat.push(above.clone()),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, above, flat)),
    }
}
