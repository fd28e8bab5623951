/* Times in copied text are exact, in local time and UTC: "3m ago" means nothing where it is pasted. */

/** The text of a copied part of the page, with the title of each time in place of its short form; null if it has no time. */
function exactText(selection: Selection): string | null {
  const part = selection.getRangeAt(0).cloneContents()
  const times = part.querySelectorAll<HTMLTimeElement>('time[title]')
  if (times.length === 0) return null
  for (const time of times) time.textContent = time.title
  // The text with its line breaks depends on the layout, so the copy lies in the page for a moment.
  const box = document.createElement('div')
  box.className = 'fixed top-0 left-0 -z-50 w-screen'
  box.append(part)
  document.body.append(box)
  const text = box.innerText
  box.remove()
  return text
}

export function writeExactTimes(): void {
  document.addEventListener('copy', (event) => {
    const selection = document.getSelection()
    if (selection === null || selection.isCollapsed || selection.rangeCount === 0 || event.clipboardData === null) return
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement) return
    const text = exactText(selection)
    if (text === null) return
    event.clipboardData.setData('text/plain', text)
    event.preventDefault()
  })
}
