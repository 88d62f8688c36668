//! The descriptions of gRPC methods: from `.proto` files, or from a set of descriptors that protoc has written.

use std::io;
use std::path::{Path, PathBuf};

use prost_reflect::{DescriptorPool, MethodDescriptor};
use protox::Compiler;

use crate::load::target::Url;

/// The most methods or services that a message lists.
const LISTED_MAX: usize = 40;

/// Compiles these files.
///
/// # Errors
/// A file cannot be read, is wrong, or imports one that is in none of the folders.
pub(super) fn of_protos(files: &[PathBuf], folders: &[PathBuf]) -> io::Result<DescriptorPool> {
    let folders = if folders.is_empty() { default_folders(files) } else { folders.to_vec() };
    let mut compiler = Compiler::new(&folders).map_err(|error| invalid(error.to_string()))?;
    for file in files {
        compiler.open_file(file).map_err(|error| why_not_compiled(file, &error))?;
    }
    Ok(compiler.descriptor_pool())
}

fn default_folders(files: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let of_files = files.iter().filter_map(|file| file.parent()).map(Path::to_path_buf);
    for folder in of_files.chain([PathBuf::new()]) {
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

fn why_not_compiled(file: &Path, error: &protox::Error) -> io::Error {
    // Its `Debug` has the place, which its `Display` has not.
    let why = format!("{error:?}");
    let is_named = error.file().is_some_and(|name| why.contains(name));
    let why = if is_named { why } else { format!("{}: {why}", file.display()) };
    let hint = match (file.exists(), error.is_file_not_found()) {
        (false, _) => return invalid(format!("--proto {}: there is no such file", file.display())),
        (true, true) => ": name the folder that it is in with --import-path",
        (true, false) => "",
    };
    invalid(format!("--proto: {why}{hint}"))
}

/// Reads a `google.protobuf.FileDescriptorSet`, from the contents of this file.
///
/// # Errors
/// It is no such set.
pub(super) fn of_protoset(file: &Path, bytes: &[u8]) -> io::Result<DescriptorPool> {
    DescriptorPool::decode(bytes).map_err(|error| {
        let file = file.display();
        invalid(format!(
            "--protoset {file}: {error}: write the file with protoc --include_imports --descriptor_set_out={file}"
        ))
    })
}

/// The service and the method that the path of the URL names: `/package.Service/Method`, or `/package.Service.Method` as ghz has it.
pub(super) fn names(url: &Url) -> Option<(&str, &str)> {
    let path = url.path.strip_prefix('/')?;
    let (service, method) = path.split_once('/').or_else(|| path.rsplit_once('.'))?;
    (!service.is_empty() && !method.is_empty() && !method.contains('/')).then_some((service, method))
}

/// Finds the method in the URL. `place` says where the descriptions come from.
///
/// # Errors
/// The URL names no method, or one that is not described. The message lists those that are.
pub(super) fn method(pool: &DescriptorPool, url: &Url, place: &str) -> io::Result<MethodDescriptor> {
    let Some((service_name, method_name)) = names(url) else {
        return Err(unnamed(pool, url, place, |_| true));
    };
    let Some(service) = pool.get_service_by_name(service_name) else {
        let services: Vec<String> = pool.services().map(|service| service.full_name().to_owned()).collect();
        return Err(unknown_service(service_name, place, &services));
    };
    let found = service.methods().find(|method| method.name() == method_name);
    found.ok_or_else(|| {
        let methods: Vec<String> = service.methods().map(|method| method.name().to_owned()).collect();
        invalid(format!("{service_name} has no method {method_name}; it has {}", listed(&methods)))
    })
}

/// The error for a URL without a method, which lists those of the services that `is_served` accepts.
pub(super) fn unnamed(pool: &DescriptorPool, url: &Url, place: &str, is_served: impl Fn(&str) -> bool) -> io::Error {
    let services = pool.services().filter(|service| is_served(service.full_name()));
    let methods: Vec<String> =
        services.flat_map(|service| service.methods().map(|method| path(&method)).collect::<Vec<_>>()).collect();
    let Some(first) = methods.first() else {
        return invalid(format!("{place} describe no service"));
    };
    let lines: String = methods.iter().take(LISTED_MAX).map(|method| format!("\n  {}", &method[1..])).collect();
    let more = methods.len().saturating_sub(LISTED_MAX);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    invalid(format!(
        "the URL names no method: append one, as in {}{first}. The methods of {place} are:{lines}{more}",
        url.authority
    ))
}

pub(super) fn unknown_service(service: &str, place: &str, known: &[String]) -> io::Error {
    match known.is_empty() {
        true => invalid(format!("{place} describe no service")),
        false => invalid(format!("there is no service {service} in {place}; there is {}", listed(known))),
    }
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED_MAX);
    let names = names.iter().take(LISTED_MAX).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{names} and {more} more") } else { names }
}

/// The path of calls of a method.
pub(super) fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

pub(super) fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const SHOP: &str = r#"syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "common/item.proto";
service Orders {
  rpc Create(Order) returns (common.Item);
  rpc Watch(Order) returns (stream common.Item);
}
message Order { common.Item item = 1; google.protobuf.Timestamp at = 2; }
"#;
    const ITEM: &str = "syntax = \"proto3\";\npackage common;\nmessage Item { int32 number = 1; }\n";

    /// A folder of its own, which is removed in the end.
    pub(in crate::load::grpc) struct Folder(PathBuf);

    impl Folder {
        pub(in crate::load::grpc) fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("steelyard-protos-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(folder.join("common")).unwrap();
            Self(folder)
        }

        pub(in crate::load::grpc) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let file = self.0.join(name);
            std::fs::write(&file, text).unwrap();
            file
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A folder with the two files, of which one imports the other by its path from there.
    fn folder() -> Folder {
        let folder = Folder::new();
        folder.write("shop.proto", SHOP);
        folder.write("common/item.proto", ITEM);
        folder
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn methods_of_files() {
        let folder = folder();
        let file = folder.0.join("shop.proto");
        let pool = of_protos(std::slice::from_ref(&file), &[]).unwrap();
        for text in ["x:1/shop.Orders/Watch", "x:1/shop.Orders.Watch"] {
            let watch = method(&pool, &url(text), "the files").unwrap();
            assert_eq!((path(&watch).as_str(), watch.is_server_streaming()), ("/shop.Orders/Watch", true));
        }
        let refused = |text: &str, expect: &str| {
            let why = method(&pool, &url(text), "the files").unwrap_err().to_string();
            assert!(why.contains(expect), "{text}: {why}");
        };
        refused(
            "x:1",
            "append one, as in x:1/shop.Orders/Create. The methods of the files are:\n  shop.Orders/Create\n",
        );
        refused("x:1/shop.Orders/Cancel", "shop.Orders has no method Cancel; it has Create, Watch");
        refused("x:1/Orders/Watch", "there is no service Orders in the files; there is shop.Orders");
        // protoc writes the same as a set.
        let of_set = of_protoset(Path::new("set.binpb"), &pool.encode_to_vec()).unwrap();
        assert!(method(&of_set, &url("x:1/shop.Orders/Create"), "the files").is_ok());
        let why = of_protoset(Path::new("set.binpb"), b"no set").unwrap_err().to_string();
        assert!(why.contains("--include_imports"), "{why}");
    }

    #[test]
    fn files_that_are_wrong_say_where() {
        let folder = folder();
        let check = |file: &str, folders: &[PathBuf], expect: &str| {
            let why = of_protos(&[folder.0.join(file)], folders).unwrap_err().to_string();
            assert!(why.contains(expect), "{why}");
        };
        check("no.proto", &[], "no.proto: there is no such file");
        folder.write("bad.proto", "syntax = \"proto3\";\nmessage A { int32 }\n");
        check("bad.proto", &[], "bad.proto:2:19");
        folder.write("common/lost.proto", "syntax = \"proto3\";\nimport \"common/item.proto\";\n");
        check("common/lost.proto", &[], "lost.proto:2:1: import 'common/item.proto' not found: name the folder");
        of_protos(&[folder.0.join("common/lost.proto")], std::slice::from_ref(&folder.0)).unwrap();
        folder.write("type.proto", "syntax = \"proto3\";\nmessage A { B b = 1; }\n");
        check("type.proto", &[], "type.proto:2:13: name 'B' is not defined");
    }
}
