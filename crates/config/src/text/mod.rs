//! What is written as one piece of text: numbers with units, addresses, the parts of a request.

mod address;
pub mod dollar;
mod grpc;
mod hash;
mod http;
mod jwt;
mod log;
mod media;
mod policy;
mod secret;
mod sidecar;
mod span_name;
mod units;
mod variables;
mod vip;

pub use address::{
    Admin, Bind, ClientNetwork, EndpointText, Network, Server, ServiceName, dns_name, parse_admin, parse_bind,
    parse_endpoint,
};
pub use grpc::{GrpcName, GrpcService};
pub use hash::{HashTemplate, QueryTemplate, RequestTemplate};
pub use http::{
    AuthStatus, BodyText, CertificateName, CookieName, FileName, Folder, HeaderName, HolderText, HostHeader, HostText,
    HttpPath, Label, LogFile, Method, Pattern, ProbeText, QueryName, RouteName, RoutePath, StatusRange, TargetPath,
    Text,
};
pub use jwt::{ClaimName, JwksText, JwksUrlText};
pub use log::{LogFormatText, LogName, LogReason, LogStatus, LogValueText, SdId, SyslogTarget};
pub use media::MediaText;
pub use policy::{
    AllowedOrigin, ChangedHeader, CorsName, HeaderValue, OriginText, PlainHost, RedirectStatus, RedirectUrl,
    ReplacedText, ReplacingText, RetryOn, SignInUrl, unchangeable,
};
pub use secret::{HashText, KeyText, Realm, UserName};
pub use sidecar::{DestinationText, SpiffeText};
pub use span_name::SpanName;
pub use units::{ByteSize, Percent, Positive, Wait, duration_text, parse_wait, percent_text, size_text};
pub use variables::HeaderTemplate;
pub use vip::{Address, Interface, Rate, Seconds, VipAddress, VipEndpoint, parse_vip_address};
