// Package chat turns a conversation into the text that a model was trained to continue, by the template that the model
// brings along (tokenizer.chat_template, in the Jinja language).
//
// It is for plain conversations of roles and texts, without tools. The language is github.com/ardanlabs/jinja's; this
// package adds what makes it safe to use on a file from anywhere and on text from anyone: errors with line and column
// when the template is read, panics and endless recursion as errors, and the byte ranges of message text that must not
// be read as control tokens. It chooses no template itself: a model without one has no chat.
//
// A template sees messages, add_generation_prompt, bos_token, eos_token, tools and documents (none), raise_exception,
// strftime_now, range, namespace and the language's other functions; blocks are trimmed as Hugging Face's library does
// it. An unknown variable is empty, as in Jinja. A template may take as long as it likes: only its size, its ranges and
// the number of its macro calls are bounded.
//
// A Template is read-only: Render may be called concurrently.
package chat
