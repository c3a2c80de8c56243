//! What is on a simulated disk: for each file and directory the live state, which the running system sees,
//! the durable state, and in between the changes that no sync has covered yet, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::SeededRandom;

use super::Unsynced;

pub(super) type Inode = u64;

const ROOT: Inode = 1;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

#[derive(Clone)]
enum Node {
    File(FileNode),
    Dir(DirNode),
}

#[derive(Clone, Default)]
struct DirNode {
    live: BTreeMap<String, Inode>,
    durable: BTreeMap<String, Inode>,
}

#[derive(Clone, Default)]
struct FileNode {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<DataChange>,
}

#[derive(Clone)]
enum DataChange {
    Write { position: usize, bytes: Vec<u8> },
    SetLen(usize),
}

/// One change of names that happens whole or not at all; a rename edits two.
#[derive(Clone)]
struct NameChange {
    edits: Vec<NameEdit>,
}

#[derive(Clone)]
struct NameEdit {
    dir: Inode,
    name: String,
    becomes: Option<Inode>,
}

#[derive(Clone)]
pub(super) struct Image {
    nodes: BTreeMap<Inode, Node>,
    inode_next: Inode,
    unsynced_names: Vec<NameChange>,
}

impl Image {
    pub(super) fn new() -> Image {
        let nodes = BTreeMap::from([(ROOT, Node::Dir(DirNode::default()))]);
        Image { nodes, inode_next: ROOT + 1, unsynced_names: Vec::new() }
    }

    // Names

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    /// The inode of a file; an error for a directory.
    pub(super) fn file(&self, path: &Path) -> io::Result<Inode> {
        let inode = self.find(path)?;
        match self.nodes[&inode] {
            Node::File(_) => Ok(inode),
            Node::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn create_file(&mut self, path: &Path) -> io::Result<Inode> {
        let (dir, name) = self.place(path)?;
        let inode = self.add(Node::File(FileNode::default()));
        self.change_names(vec![NameEdit { dir, name, becomes: Some(inode) }]);
        Ok(inode)
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut dir = ROOT;
        for name in parts(path)? {
            dir = match self.names(dir)?.get(&name) {
                Some(inode) => *inode,
                None => {
                    let inode = self.add(Node::Dir(DirNode::default()));
                    self.change_names(vec![NameEdit { dir, name, becomes: Some(inode) }]);
                    inode
                }
            };
        }
        self.names(dir).map(|_| ())
    }

    pub(super) fn entries(&self, path: &Path) -> io::Result<Vec<(String, bool)>> {
        let names = self.names(self.find(path)?)?;
        Ok(names.iter().map(|(name, inode)| (name.clone(), self.is_dir(*inode))).collect())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let moved = self.find(from)?;
        let (from_dir, from_name) = self.place(from)?;
        let (to_dir, to_name) = self.place(to)?;
        if let Some(replaced) = self.names(to_dir)?.get(&to_name).copied() {
            if replaced == moved {
                return Ok(());
            }
            match (self.is_dir(moved), self.is_dir(replaced)) {
                (false, true) => return Err(io::ErrorKind::IsADirectory.into()),
                (true, false) => return Err(io::ErrorKind::NotADirectory.into()),
                (true, true) if !self.names(replaced)?.is_empty() => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
                _ => {}
            }
        }
        self.change_names(vec![
            NameEdit { dir: from_dir, name: from_name, becomes: None },
            NameEdit { dir: to_dir, name: to_name, becomes: Some(moved) },
        ]);
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        self.file(path)?;
        let (dir, name) = self.place(path)?;
        self.change_names(vec![NameEdit { dir, name, becomes: None }]);
        Ok(())
    }

    /// Removes from the leaves up, one change a name, as the real call does: a crash may leave half of it.
    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let removed = self.find(path)?;
        self.names(removed)?;
        let (dir, name) = self.place(path)?;
        self.remove_below(removed)?;
        self.change_names(vec![NameEdit { dir, name, becomes: None }]);
        Ok(())
    }

    fn remove_below(&mut self, dir: Inode) -> io::Result<()> {
        for (name, inode) in self.names(dir)?.clone() {
            if self.is_dir(inode) {
                self.remove_below(inode)?;
            }
            self.change_names(vec![NameEdit { dir, name, becomes: None }]);
        }
        Ok(())
    }

    /// Makes durable all changes of this directory's names, and those before them that they build on.
    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let dir = self.find(path)?;
        self.names(dir)?;
        let mut covered = BTreeSet::from([dir]);
        let mut synced = Vec::new();
        for index in (0..self.unsynced_names.len()).rev() {
            let edits = &self.unsynced_names[index].edits;
            if edits.iter().any(|edit| covered.contains(&edit.dir)) {
                covered.extend(edits.iter().map(|edit| edit.dir));
                synced.push(self.unsynced_names.remove(index));
            }
        }
        for change in synced.into_iter().rev() {
            self.make_durable(change);
        }
        Ok(())
    }

    fn find(&self, path: &Path) -> io::Result<Inode> {
        let mut inode = ROOT;
        for name in parts(path)? {
            inode = *self.names(inode)?.get(&name).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(inode)
    }

    /// The directory that holds a name, which need not exist itself.
    fn place(&self, path: &Path) -> io::Result<(Inode, String)> {
        let mut above = parts(path)?;
        let name = above.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.find(&above.iter().collect::<PathBuf>())?;
        self.names(dir)?;
        Ok((dir, name))
    }

    fn names(&self, inode: Inode) -> io::Result<&BTreeMap<String, Inode>> {
        match &self.nodes[&inode] {
            Node::Dir(dir) => Ok(&dir.live),
            Node::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn is_dir(&self, inode: Inode) -> bool {
        matches!(self.nodes[&inode], Node::Dir(_))
    }

    fn add(&mut self, node: Node) -> Inode {
        let inode = self.inode_next;
        self.inode_next += 1;
        self.nodes.insert(inode, node);
        inode
    }

    fn change_names(&mut self, edits: Vec<NameEdit>) {
        for edit in &edits {
            apply_edit(&mut self.dir_mut(edit.dir).live, edit);
        }
        self.unsynced_names.push(NameChange { edits });
    }

    fn make_durable(&mut self, change: NameChange) {
        for edit in &change.edits {
            apply_edit(&mut self.dir_mut(edit.dir).durable, edit);
        }
    }

    fn dir_mut(&mut self, inode: Inode) -> &mut DirNode {
        match self.nodes.get_mut(&inode) {
            Some(Node::Dir(dir)) => dir,
            _ => unreachable!("a change of names is only made in a directory"),
        }
    }

    // Data

    pub(super) fn content(&self, inode: Inode) -> &[u8] {
        match &self.nodes[&inode] {
            Node::File(file) => &file.live,
            Node::Dir(_) => unreachable!("a directory is never open as a file"),
        }
    }

    /// What a file would hold if the power went now and nothing unsynced survived.
    pub(super) fn durable_content(&self, path: &Path) -> Option<&[u8]> {
        let mut inode = ROOT;
        for name in parts(path).ok()? {
            match &self.nodes[&inode] {
                Node::Dir(dir) => inode = *dir.durable.get(&name)?,
                Node::File(_) => return None,
            }
        }
        match &self.nodes[&inode] {
            Node::File(file) => Some(&file.durable),
            Node::Dir(_) => None,
        }
    }

    pub(super) fn write(&mut self, inode: Inode, position: usize, bytes: Vec<u8>) {
        self.change_data(inode, DataChange::Write { position, bytes });
    }

    pub(super) fn set_len(&mut self, inode: Inode, len: usize) {
        self.change_data(inode, DataChange::SetLen(len));
    }

    pub(super) fn sync_data(&mut self, inode: Inode) {
        let file = self.file_mut(inode);
        for change in std::mem::take(&mut file.unsynced) {
            change.apply(&mut file.durable);
        }
    }

    /// What Linux does when an fsync fails: the pages count as clean from then on, so no later sync writes
    /// them, while reads still show them.
    pub(super) fn fail_sync_data(&mut self, inode: Inode) {
        self.file_mut(inode).unsynced.clear();
    }

    pub(super) fn flip_bits(&mut self, inode: Inode, position: usize, mask: u8) {
        let file = self.file_mut(inode);
        file.live[position] ^= mask;
        if let Some(byte) = file.durable.get_mut(position) {
            *byte ^= mask;
        }
        let covering = file.unsynced.iter_mut().rev().find_map(|change| match change {
            DataChange::Write { position: start, bytes } => bytes.get_mut(position.checked_sub(*start)?),
            DataChange::SetLen(_) => None,
        });
        if let Some(byte) = covering {
            *byte ^= mask;
        }
    }

    /// The bytes that all files hold which a live name leads to.
    pub(super) fn used_bytes(&self) -> u64 {
        self.reachable(|dir| &dir.live)
            .iter()
            .map(|inode| match &self.nodes[inode] {
                Node::File(file) => file.live.len() as u64,
                Node::Dir(_) => 0,
            })
            .sum()
    }

    fn change_data(&mut self, inode: Inode, change: DataChange) {
        let file = self.file_mut(inode);
        change.apply(&mut file.live);
        file.unsynced.push(change);
    }

    fn file_mut(&mut self, inode: Inode) -> &mut FileNode {
        match self.nodes.get_mut(&inode) {
            Some(Node::File(file)) => file,
            _ => unreachable!("only a file is open as a file"),
        }
    }

    // The crash

    /// The disk as it is found after the power was gone: durable, and of the rest what `unsynced` says.
    pub(super) fn after_crash(mut self, unsynced: Unsynced, random: &SeededRandom) -> Image {
        self.settle_names(unsynced, random);
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => {
                    settle_data(file, unsynced, random);
                    file.live.clone_from(&file.durable);
                }
                Node::Dir(dir) => dir.live.clone_from(&dir.durable),
            }
        }
        let reachable = self.reachable(|dir| &dir.durable);
        self.nodes.retain(|inode, _| reachable.contains(inode));
        self
    }

    /// In each directory a prefix of the unsynced changes survives; one that edits two directories survives
    /// only with both.
    fn settle_names(&mut self, unsynced: Unsynced, random: &SeededRandom) {
        let changes = std::mem::take(&mut self.unsynced_names);
        let mut budgets: BTreeMap<Inode, u64> = BTreeMap::new();
        for edit in changes.iter().flat_map(|change| &change.edits) {
            *budgets.entry(edit.dir).or_insert(0) += 1;
        }
        for budget in budgets.values_mut() {
            *budget = match unsynced {
                Unsynced::Lost => 0,
                Unsynced::Kept => *budget,
                Unsynced::Torn | Unsynced::Scattered | Unsynced::Seeded => random.below(*budget + 1),
            };
        }
        for change in changes {
            let survives = change.edits.iter().all(|edit| budgets[&edit.dir] > 0);
            for edit in &change.edits {
                let budget = budgets.get_mut(&edit.dir).expect("each edited directory has a budget");
                *budget = if survives { budget.saturating_sub(1) } else { 0 };
            }
            if survives {
                self.make_durable(change);
            }
        }
    }

    fn reachable(&self, names: impl Fn(&DirNode) -> &BTreeMap<String, Inode>) -> BTreeSet<Inode> {
        let mut found = BTreeSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(inode) = open.pop() {
            if let Node::Dir(dir) = &self.nodes[&inode] {
                for below in names(dir).values() {
                    if found.insert(*below) {
                        open.push(*below);
                    }
                }
            }
        }
        found
    }
}

impl DataChange {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            DataChange::Write { position, bytes } => write_at(content, *position, bytes),
            DataChange::SetLen(len) => content.resize(*len, 0),
        }
    }
}

fn settle_data(file: &mut FileNode, unsynced: Unsynced, random: &SeededRandom) {
    let changes = std::mem::take(&mut file.unsynced);
    if changes.is_empty() {
        return;
    }
    let fate = match unsynced {
        Unsynced::Seeded => {
            [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn, Unsynced::Scattered][random.below(4) as usize]
        }
        fate => fate,
    };
    match fate {
        Unsynced::Lost => {}
        Unsynced::Torn => keep_prefix(&mut file.durable, &changes, random),
        Unsynced::Scattered => keep_sectors(&mut file.durable, &changes, random),
        Unsynced::Kept | Unsynced::Seeded => {
            changes.iter().for_each(|change| change.apply(&mut file.durable));
        }
    }
}

/// Keeps the first changes, and of the next one, where it is a write, the first bytes.
fn keep_prefix(durable: &mut Vec<u8>, changes: &[DataChange], random: &SeededRandom) {
    let whole = random.below(changes.len() as u64 + 1) as usize;
    changes[..whole].iter().for_each(|change| change.apply(durable));
    if let Some(DataChange::Write { position, bytes }) = changes.get(whole) {
        let torn_at = random.below(bytes.len() as u64 + 1) as usize;
        write_at(durable, *position, &bytes[..torn_at]);
    }
}

/// Keeps every change of length but of the data only some sectors, since a disk writes them in any order;
/// what is lost reads as it was before, or as zeros where the file was shorter.
fn keep_sectors(durable: &mut Vec<u8>, changes: &[DataChange], random: &SeededRandom) {
    for change in changes {
        match change {
            DataChange::SetLen(_) => change.apply(durable),
            DataChange::Write { position, bytes } => {
                let end = position + bytes.len();
                if durable.len() < end {
                    durable.resize(end, 0);
                }
                let mut start = *position;
                while start < end {
                    let sector_end = (start / SECTOR_BYTES + 1) * SECTOR_BYTES;
                    let stop = sector_end.min(end);
                    if random.chance(1, 2) {
                        durable[start..stop].copy_from_slice(&bytes[start - position..stop - position]);
                    }
                    start = stop;
                }
            }
        }
    }
}

fn write_at(content: &mut Vec<u8>, position: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = position + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[position..end].copy_from_slice(bytes);
}

fn apply_edit(names: &mut BTreeMap<String, Inode>, edit: &NameEdit) {
    match edit.becomes {
        Some(inode) => names.insert(edit.name.clone(), inode),
        None => names.remove(&edit.name),
    };
}

/// The names that a path goes through; relative paths begin at the root.
fn parts(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                names.push(name.to_str().ok_or(io::ErrorKind::InvalidFilename)?.to_owned());
            }
            Component::ParentDir => {
                names.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(names)
}
