//! The names under which protocol violations are counted.

use wire::h2::Reason;

#[test]
fn reasons_keep_their_names() {
    let all = [
        Reason::Preface,
        Reason::FrameSize,
        Reason::StreamId,
        Reason::StreamClosed,
        Reason::Padding,
        Reason::Continuation,
        Reason::Push,
        Reason::Setting,
        Reason::Priority,
        Reason::WindowUpdate,
        Reason::FlowControl,
        Reason::Compression,
        Reason::Field,
        Reason::ConnectionField,
        Reason::PseudoHeader,
        Reason::Authority,
        Reason::ContentLength,
        Reason::Response,
        Reason::Trailers,
        Reason::HeadTooLarge,
        Reason::HeadFlood,
        Reason::StreamLimit,
        Reason::Glitches,
        Reason::OutputFlood,
        Reason::SettingsTimeout,
    ];
    for reason in all {
        assert_eq!(super::reason(reason).name(), reason.name());
    }
}
